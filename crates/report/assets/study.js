"use strict";
// Draws the figures of a study run again. It computes nothing that a reader could take for a result.
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const { LIMIT, SANS, digits, element, tooltip, legendLines, base, valueAxis, scale, sample } = drawing;
  const { PUBLISHED, diamond, cross } = signs;
  const DASH = "path://M0 5h20v2H0z";
  const figures = new Map([...data.plots, ...data.scatters].map((figure) => [figure.id, figure]));

  const number = (value, like) => value === 0 ? "0" : digits(value, like);
  const points = (figure) => figure.series.flatMap((one) => one.points.filter((point) => point !== null));
  const has = (figure, what) => points(figure).some((point) => point[what] !== null);
  const valueOf = (point, what) => what === "other" ? point.other.value : point[what];
  // What the value axis has to reach: whiskers of few runs may be longer than all else, and end where it does.
  const largestOf = (figure) => {
    const all = points(figure);
    const seen = Math.max(0, ...all.flatMap((point) => [point.value || 0, point.limit || 0, point.other?.value || 0, (point.published || 0) + Math.min(point.allowed || 0, 0.3 * (point.published || 0))]));
    const whiskers = Math.max(0, ...all.map((point) => (point.value || 0) + (point.margin || 0)));
    return Math.min(Math.max(seen, whiskers), seen * 1.4);
  };
  const axisOf = (figure, room) => {
    const largest = largestOf(figure);
    // No share is above the whole.
    const whole = figure.unit === "%" && largest <= 140 && points(figure).every((point) => Math.max(point.value || 0, point.limit || 0, point.published || 0, point.other?.value || 0) <= 100);
    return whole && largest * room > 75 ? { max: 100, interval: 25 } : scale(largest * room);
  };

  // Of one bar or curve alone: what is ours apart from what is not.
  function curves(figure) {
    if (figure.series.length > 1) return figure.series.map((one, rank) => ({ ...one, rank }));
    const [only] = figure.series;
    const kinds = [["reproduced", false], ["ours", true]].map(([name, ours], rank) => ({
      name, ours, rank, points: only.points.map((point) => point !== null && point.ours === ours ? point : null),
    }));
    return kinds.filter((kind) => kind.points.some((point) => point !== null));
  }
  function place({ names, along }, index) {
    if (names) return names[index];
    return along.kind === "groups" ? along.names[index] : `${along.name.split(",")[0]} ${along.labels[index]}`;
  }
  function titleOf(figure, one, index) {
    const names = [place(figure, index)];
    if (figure.series.length > 1) names.push(one.name);
    return names.filter((name) => name && name !== "all runs").join(" · ");
  }

  // The resolved plan of a cell, in a fold: that of its scenario's first with what differs.
  function planOf(cell) {
    const fold = element("details");
    fold.append(element("summary", "Plan, every default visible"));
    fold.addEventListener("toggle", () => {
      if (fold.childElementCount > 1) return;
      const first = [...document.querySelectorAll("pre[data-scenario]")].find((it) => it.dataset.scenario === cell.scenario);
      const plan = JSON.parse(first.textContent);
      for (const [path, [value]] of cell.plan) {
        const last = path.at(-1);
        const place = path.slice(0, -1).reduce((at, step) => at[step], plan);
        if (value === undefined) delete place[last];
        else place[last] = value;
      }
      const shown = element("pre", JSON.stringify(plan, null, 2));
      shown.className = "plan";
      fold.append(shown);
    });
    return fold;
  }

  // What a cell gave for a figure, and what that stands beside.
  function values({ here, beside }, ofUnit, point, line) {
    const unit = ofUnit ? ` ${ofUnit}` : "";
    const measured = ({ value, margin, runs }) => `${number(value)}${margin === null ? "" : ` ± ${digits(margin, value)}`}${unit}, ${runs} ${runs === 1 ? "run" : "runs"}`;
    const kind = point.ours ? "ours" : "reproduced";
    line(beside ? `${kind}, ${here}` : kind, point.value === null
      ? `none: ${point.missing} of ${point.runs + point.missing} runs did not give it`
      : measured(point));
    if (point.other !== null) {
      line(`the same, ${beside}`, measured(point.other));
      if (point.other.ratio !== null) line("lab / sim", point.other.ratio);
    }
    if (point.published !== null) {
      const off = point.allowed === null ? "" : ` ± ${digits(point.allowed, point.published)}`;
      line(point.called ? `${PUBLISHED}, ${point.called}` : PUBLISHED, `${point.published}${off}${unit}${point.verdict ? `: ${point.verdict}` : ""}`);
    }
    if (point.limit !== null) line(LIMIT, `${number(point.limit)}${unit}`);
  }

  // What is known of a cell, and how it is run again: elements, not markup, for names come from files.
  function told(figure, title, point) {
    const measures = figure.x ? [[figure.x, point.x], [figure.y, point.y]] : [[figure, point]];
    const cell = data.cells[measures[0][1].cell];
    const box = element("div");
    box.className = "tip cell";
    box.append(element("b", title || cell.scenario));
    const line = (name, value) => {
      const row = element("div");
      row.append(element("span", name), element("em", value));
      box.append(row);
    };
    for (const [measure, of] of measures) {
      if (measures.length > 1) box.append(element("p", measure.axis));
      values(figure, measure.unit, of, line);
    }
    const seeds = (of) => of.seeds.length === 1 ? "seed" : "seeds";
    line(seeds(cell), cell.seeds.join(", ") || "–");
    if (cell.beside) line(`${seeds(cell.beside)}, ${cell.beside.place}`, cell.beside.seeds.join(", "));
    const set = (settings, place) => {
      if (!settings.length) return;
      const list = element("p");
      list.className = "settings";
      if (place) list.append(`${place}: `);
      settings.forEach((setting, at) => {
        if (at) list.append(" ");
        list.append(element("code", setting));
      });
      box.append(list);
    };
    set(cell.settings);
    if (cell.beside) set(cell.beside.settings, cell.beside.place);
    if (cell.plan) box.append(planOf(cell));
    for (const { command } of [cell, cell.beside].filter((it) => it)) {
      const again = element("code", command);
      again.className = "again";
      box.append(again);
    }
    return box;
  }
  function pick(holder, figure, title, point) {
    const box = told(figure, title, point);
    for (const command of box.querySelectorAll(".again")) {
      const copy = element("button", "Copy the command");
      copy.type = "button";
      copy.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(command.textContent);
          copy.textContent = "Copied";
        } catch {
          // Without a clipboard it is at least marked.
          window.getSelection().selectAllChildren(command);
        }
      });
      command.after(copy);
    }
    holder.querySelector(".picked").replaceChildren(box);
  }

  const legendOf = (figure, shown, style, icon) => {
    const items = shown.map(icon);
    if (has(figure, "published")) items.push(signs.legend.published(style));
    if (figure.beside) items.push(signs.legend.beside(figure.beside, style));
    if (has(figure, "limit")) items.push({ name: LIMIT, icon: DASH, itemStyle: { color: style.limit } });
    return items;
  };
  const stroke = (from, to, style, more) => ({
    type: "line", silent: true, shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] }, style: { stroke: style, fill: null, ...more },
  });

  const telling = (figure, style, find) => ({
    ...tooltip(style), trigger: "item", enterable: true,
    formatter: (params) => {
      const found = find(params);
      return found ? told(figure, ...found) : "";
    },
  });
  // What is around the curves or marks of a figure: its legend, the room for them, and what they tell.
  const around = (figure, style, exported, { legend, top, height, find }) => ({
    legend: { top: exported ? 30 : 0, left: 0, itemWidth: 34, itemHeight: 10, itemGap: 14, textStyle: { color: style.ink, fontSize: 12 }, data: legend },
    grid: { left: 46, right: 18, top, height },
    tooltip: telling(figure, style, find),
  });

  function bars(figure, width, look, exported) {
    const style = { ...look, paperOf: exported ? "#ffffff" : look.paper };
    const shown = curves(figure);
    const groups = figure.along.names;
    const alone = figure.series.length === 1;
    const count = alone ? 1 : shown.length;
    const lying = width < 560 || (width - 60) / (groups.length * (count + 0.6)) < 10;
    const legend = legendOf(figure, shown, style, (one) => ({ name: one.name }));
    const top = (exported ? 34 : 4) + legendLines(legend.map((it) => it.name), width) * 24 + (lying ? 34 : 26);
    const names = lying ? Math.min(Math.max(...groups.map((name) => name.length)) * 6.6 + 14, width * 0.34) : 46;
    const thick = count === 1 ? 20 : 14;
    const longest = Math.max(...groups.map((name) => name.length));
    const room = (width - 60) / groups.length;
    // Labels below bars may take several lines.
    const foot = lying ? 10 : 14 + 15 * Math.min(4, Math.ceil((longest * 6.6) / Math.max(room - 8, 30)));
    const height = lying ? groups.length * (count * thick + 14) : 250;
    const shape = { barGap: alone ? "-100%" : "8%", barCategoryGap: lying ? "20%" : "26%", ...(alone && !lying ? { barMaxWidth: 72 } : {}) };
    const axis = axisOf(figure, lying ? 1.16 : 1.08);
    const largest = axis.max;
    const wide = lying ? thick : room / (count + 0.6);
    // Where a value is written: beyond the whisker, the marks and the limit, where these are in its way.
    const beyond = (point) => {
      let above = Math.min(point.value + (point.margin || 0), axis.max);
      let free = 0;
      for (const mark of [point.published, point.other && point.other.value]) {
        if (mark === null || Math.abs(mark - above) >= largest * 0.09) continue;
        above = Math.max(above, mark);
        free = 6;
      }
      if (point.limit !== null && point.limit >= above && point.limit - above < largest * 0.08) above = point.limit;
      return [above, free];
    };
    // What is written beyond lying bars needs its room at the edge.
    const tails = points(figure).filter((point) => point.value !== null).map((point) => {
      const [above, free] = beyond(point);
      return 9 + free + number(point.value).length * 6.4 - (1 - Math.min(above / largest, 1)) * (width - names - 80);
    });
    const edge = lying ? Math.ceil(Math.max(24, ...tails)) : 10;
    const at = (api, group, value) => lying ? api.coord([value, group]) : api.coord([group, value]);
    const moved = ([x, y], offset) => lying ? [x, y + offset] : [x + offset, y];
    const pair = (group, value) => lying ? [value, group] : [group, value];
    const slotOf = (api, rank) => {
      const visible = api.currentSeriesIndices().filter((index) => index < shown.length);
      const slots = api.barLayout({ ...shape, count: alone ? 1 : visible.length });
      return visible.includes(rank) ? slots[alone ? 0 : visible.indexOf(rank)] : undefined;
    };
    const series = shown.map((one) => ({
      type: "bar", name: one.name, ...shape, cursor: "pointer", emphasis: { disabled: true },
      itemStyle: { color: style.colour(one.rank), decal: style.pattern(one.rank) },
      data: one.points.map((point) => point === null || point.value === null ? null : point.value),
    }));
    // Whiskers and values, which must know where a bar stands among the visible ones.
    shown.forEach((one, rank) => series.push({
      type: "custom", name: one.name, silent: true, z: 4, tooltip: { show: false }, itemStyle: { color: style.colour(one.rank) },
      data: one.points.map((point, group) => pair(group, point?.value || 0)),
      renderItem: (params, api) => {
        const point = one.points[params.dataIndex];
        const slot = slotOf(api, rank);
        if (!point || !slot) return null;
        const middle = (value) => moved(at(api, params.dataIndex, value), slot.offsetCenter);
        const parts = [];
        const write = (text, [x, y]) => parts.push({
          type: "text", silent: true,
          style: {
            text, x: lying ? x + 5 : x, y: lying ? y : y - 4, align: lying ? "left" : "center", verticalAlign: lying ? "middle" : "bottom",
            fill: style.ink, fontSize: 10.5, fontFamily: SANS, stroke: style.paperOf, lineWidth: 3,
          },
        });
        if (point.value === null) {
          if (wide >= 12) write("–", middle(0));
          return { type: "group", children: parts };
        }
        const half = point.margin || 0;
        if (half > 0) {
          const reach = Math.min(5, slot.width / 4);
          const [least, most] = [Math.max(0, point.value - half), Math.min(axis.max, point.value + half)];
          const [low, high] = [middle(least), middle(most)];
          const across = ([x, y], by) => lying ? [x, y + by] : [x + by, y];
          parts.push(stroke(low, high, style.ink, { lineWidth: 1.2 }), stroke(across(low, -reach), across(low, reach), style.ink, { lineWidth: 1.2 }));
          if (most === point.value + half) parts.push(stroke(across(high, -reach), across(high, reach), style.ink, { lineWidth: 1.2 }));
        }
        if (wide >= (lying ? 12 : 30)) {
          const [above, free] = beyond(point);
          const [x, y] = middle(above);
          write(number(point.value), lying ? [x + free, y] : [x, y - free]);
        }
        return { type: "group", children: parts };
      },
    }));
    const marks = shown.flatMap((one, rank) => one.points.flatMap((point, group) => point === null ? [] : [{ one, rank, point, group }]));
    const marked = (what, name, z, colour, draw) => {
      const some = marks.filter((mark) => mark.point[what] !== null);
      if (!some.length) return;
      series.push({
        type: "custom", name, z, cursor: "pointer", silent: what === "limit", itemStyle: { color: colour }, marks: some,
        data: some.map((mark) => pair(mark.group, valueOf(mark.point, what))),
        renderItem: (params, api) => {
          const mark = some[params.dataIndex];
          const slot = slotOf(api, mark.rank);
          return slot ? draw(mark, slot, (value) => moved(at(api, mark.group, value), slot.offsetCenter)) : null;
        },
      });
    };
    marked("limit", LIMIT, 3, style.limit, ({ point }, slot, middle) => {
      const [x, y] = middle(point.limit);
      const reach = slot.width / 2 + 2;
      return lying ? stroke([x, y - reach], [x, y + reach], style.limit, { lineWidth: 2 }) : stroke([x - reach, y], [x + reach, y], style.limit, { lineWidth: 2 });
    });
    marked("published", PUBLISHED, 6, style.ink, ({ point }, _, middle) => {
      const parts = [];
      if (point.allowed !== null) {
        parts.push(stroke(middle(Math.max(0, point.published - point.allowed)), middle(Math.min(axis.max, point.published + point.allowed)), style.ink, { lineWidth: 1.2, lineDash: [2, 2] }));
      }
      parts.push(diamond(middle(point.published), style));
      return { type: "group", children: parts };
    });
    // Beside the middle, where whisker and diamond are.
    marked("other", figure.beside, 5, style.ink, ({ point }, slot, middle) => {
      const aside = (value) => moved(middle(value), Math.max(slot.width * 0.27, 3.5));
      const { value, margin } = point.other;
      const parts = margin === null ? [] : [
        stroke(aside(Math.max(0, value - margin)), aside(Math.min(axis.max, value + margin)), style.paperOf, { lineWidth: 3 }),
        stroke(aside(Math.max(0, value - margin)), aside(Math.min(axis.max, value + margin)), style.ink, { lineWidth: 1.2 }),
      ];
      return { type: "group", children: [...parts, cross(aside(value), style, style.ink)] };
    });
    const value = { ...valueAxis(style, figure.axis), ...axis };
    const category = {
      type: "category", data: groups, axisTick: { show: false }, axisLine: { lineStyle: { color: style.ink } },
      axisLabel: { color: style.ink, fontSize: 12, interval: 0, overflow: "break", width: lying ? names - 10 : Math.max(room - 8, 30), lineHeight: 15 },
    };
    const find = (params) => {
      const mark = params.componentSubType === "custom" ? option.series[params.seriesIndex].marks?.[params.dataIndex] : null;
      const one = mark ? mark.one : shown[params.seriesIndex];
      const index = mark ? mark.group : params.dataIndex;
      const point = mark ? mark.point : one?.points[index];
      return point ? [titleOf(figure, one, index), point] : null;
    };
    const option = {
      ...base(style, figure, exported, true),
      legend: { top: exported ? 30 : 0, left: 0, itemWidth: 20, itemHeight: 11, itemGap: 14, textStyle: { color: style.ink, fontSize: 12 }, data: legend },
      grid: { left: names, right: edge, top, height },
      tooltip: telling(figure, style, find),
      xAxis: lying ? { ...value, position: "top", nameLocation: "start", nameGap: 0, nameTextStyle: { ...value.nameTextStyle, align: "left", verticalAlign: "bottom", padding: [0, 0, 18, -names + 4] } } : category,
      yAxis: lying ? { ...category, inverse: true } : value,
      series,
    };
    return { option, find, height: top + height + foot };
  }

  function lines(figure, width, look, exported) {
    const style = { ...look, paperOf: exported ? "#ffffff" : look.paper };
    const shown = curves(figure);
    const xs = figure.along.values;
    const legend = legendOf(figure, shown, style, (one) => ({ name: one.name, icon: sample(one.rank, style), lineStyle: { width: 0 }, itemStyle: { borderWidth: 0 } }));
    const top = (exported ? 34 : 4) + legendLines(legend.map((it) => `${it.name}  `), width) * 24 + 26;
    const height = 270;
    const axis = axisOf(figure, 1.05);
    const series = shown.map((one) => ({
      type: "line", name: one.name, cursor: "pointer", z: 4, emphasis: { disabled: true }, symbol: style.marker(one.rank), symbolSize: 9, showAllSymbol: true, connectNulls: true,
      lineStyle: { width: one.ours ? 2.4 : 1.6, type: style.dash(one.rank), color: style.colour(one.rank) }, itemStyle: { color: style.colour(one.rank) },
      data: one.points.map((point, at) => [xs[at], point === null ? null : point.value]),
    }));
    shown.forEach((one, rank) => {
      const some = one.points.flatMap((point, at) => point === null || point.margin === null ? [] : [[xs[at], point.value, point.margin]]);
      if (!some.length) return;
      series.push({
        type: "custom", name: one.name, silent: true, z: 3, tooltip: { show: false }, itemStyle: { color: style.colour(rank) }, data: some.map(([x, value]) => [x, value]),
        renderItem: (params, api) => {
          const [x, value, half] = some[params.dataIndex];
          const [high, low] = [api.coord([x, Math.min(axis.max, value + half)]), api.coord([x, Math.max(0, value - half)])];
          const line = { lineWidth: 1.3 };
          const colour = style.colour(rank);
          return { type: "group", children: [
            stroke(high, low, colour, line), stroke([high[0] - 4, high[1]], [high[0] + 4, high[1]], colour, line), stroke([low[0] - 4, low[1]], [low[0] + 4, low[1]], colour, line),
          ] };
        },
      });
    });
    const known = new Set();
    for (const one of shown) {
      const limits = one.points.flatMap((point, at) => point === null || point.limit === null ? [] : [[xs[at], point.limit]]);
      const key = limits.map(([x, limit]) => `${x}:${digits(limit)}`).join(" ");
      if (!limits.length || known.has(key)) continue;
      known.add(key);
      series.push({ type: "line", name: LIMIT, silent: true, z: 2, symbol: "none", data: limits, lineStyle: { width: 2, color: style.limit, type: "solid" }, itemStyle: { color: style.limit }, tooltip: { show: false } });
    }
    const marks = shown.flatMap((one) => one.points.flatMap((point, at) => point === null || point.published === null ? [] : [{ one, point, at }]));
    if (marks.length) {
      series.push({
        type: "custom", name: PUBLISHED, z: 6, cursor: "pointer", itemStyle: { color: style.ink }, marks, data: marks.map((mark) => [xs[mark.at], mark.point.published]),
        renderItem: (params, api) => {
          const { point, at } = marks[params.dataIndex];
          const parts = point.allowed === null ? [] : [stroke(
            api.coord([xs[at], Math.max(0, point.published - point.allowed)]), api.coord([xs[at], Math.min(axis.max, point.published + point.allowed)]), style.ink, { lineWidth: 1.2, lineDash: [2, 2] },
          )];
          parts.push(diamond(api.coord([xs[at], point.published]), style));
          return { type: "group", children: parts };
        },
      });
    }
    shown.forEach((one, rank) => {
      const some = one.points.flatMap((point, at) => point === null || point.other === null ? [] : [{ one, point, at }]);
      if (!some.length) return;
      const colour = style.colour(one.rank);
      series.push({
        type: "custom", name: figure.beside, z: 5, cursor: "pointer", itemStyle: { color: style.ink }, marks: some, data: some.map((mark) => [xs[mark.at], mark.point.other.value]),
        renderItem: (params, api) => {
          const { point, at } = some[params.dataIndex];
          if (!api.currentSeriesIndices().includes(rank)) return null;
          const own = (value) => api.coord([xs[at], value]);
          const aside = (value) => [own(value)[0] + 8, own(value)[1]];
          const { value, margin } = point.other;
          // A line to the point that it belongs to says of which curve it is.
          const parts = point.value === null ? [] : [stroke(own(point.value), aside(value), colour, { lineWidth: 1 })];
          if (margin !== null) parts.push(stroke(aside(Math.max(0, value - margin)), aside(Math.min(axis.max, value + margin)), colour, { lineWidth: 1.2 }));
          return { type: "group", children: [...parts, cross(aside(value), style, colour)] };
        },
      });
    });
    const find = (params) => {
      const mark = option.series[params.seriesIndex].marks?.[params.dataIndex];
      const one = mark ? mark.one : shown[params.seriesIndex];
      const index = mark ? mark.at : params.dataIndex;
      const point = one?.points[index];
      return point ? [titleOf(figure, one, index), point] : null;
    };
    const option = {
      ...base(style, figure, exported, false),
      ...around(figure, style, exported, { legend, top, height, find }),
      xAxis: {
        type: "value", min: 0, max: Math.max(...xs) * 1.02, name: figure.along.name, nameLocation: "middle", nameGap: 26, nameTextStyle: { color: style.soft, fontSize: 11 },
        axisLabel: { color: style.soft, fontSize: 11, hideOverlap: true, showMaxLabel: false }, axisLine: { lineStyle: { color: style.ink } }, axisTick: { lineStyle: { color: style.ink } }, splitLine: { show: false },
      },
      yAxis: { ...valueAxis(style, figure.axis), ...axis },
      series,
    };
    return { option, find, height: top + height + 44 };
  }

  const scatter = window.midhopScatter?.({ around, titleOf });
  const makers = new Map([...figures.values()].map((figure) => {
    const maker = figure.x ? scatter : figure.along.kind === "groups" ? bars : lines;
    return [figure.id, [figure, maker]];
  }));
  const over = window.midhopTrace?.(data);
  if (over) makers.set("trace", over.made);
  const pictures = drawing.run(makers, (holder, chart, made) => {
    if (!made.find) return;
    chart.on("click", (params) => {
      const found = made.find(params);
      if (found) pick(holder, figures.get(holder.id), ...found);
    });
  });
  over?.start(pictures);

  document.addEventListener("click", (event) => {
    if (event.target.dataset?.csv === undefined) return;
    const { id } = event.target.closest("figure");
    const csv = id === "trace" ? over.csv() : figures.get(id).csv;
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
    link.download = `${data.names.file}-${id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  // On paper nothing can be unfolded.
  window.addEventListener("beforeprint", () => document.querySelectorAll("details.figures").forEach((it) => { it.open = true; }));
  window.midhopReport.tell = (id, series, index) => {
    const figure = figures.get(id);
    const one = curves(figure)[series];
    return told(figure, titleOf(figure, one, index), one.points[index]);
  };
})();

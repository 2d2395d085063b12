"use strict";
// Draws one run over time, two, or all along an axis, when a reader asks for them.
window.midhopTrace = (data) => {
  const { LIMIT, SANS, digits, tip, tooltip, legendLines, base, valueAxis, scale, sample, element } = drawing;
  const holder = document.getElementById("trace");
  if (!holder || !data.traces.length) return null;
  const PHASES = ["slow start", "avoidance", "fast recovery", "timeout"];
  const chosen = { title: "one run over time", runs: [] };

  // Runs as they are drawn. Of one all that it holds, and of two as well; of more that are laid over each other
  // one sender each, under the name of the case.
  const LONGEST = "", OWN = "own";
  const meanOf = ({ points }) => points.reduce((sum, point) => sum + point[1], 0) / points.length;
  function senderOf(trace, sender) {
    if (sender !== LONGEST) return sender;
    const trips = trace.panels.find((panel) => panel.name === "round-trip time")?.curves || [];
    return trips.reduce((most, one) => most && meanOf(most) >= meanOf(one) ? most : one, null)?.name;
  }
  function together(traces, axis, sender) {
    return traces.map((trace) => {
      const name = trace.at.find((it) => it.axis === axis).label;
      const who = senderOf(trace, sender);
      // What no proxy sends on, the transfer's own sender sends; of several flows the first.
      const one = (all) => [all.find((it) => it.name === who) ?? all.find((it) => !it.leg)].filter((it) => it).map((it) => ({ ...it, name, of: it.name }));
      return { ...trace, panels: trace.panels.map((panel) => ({ ...panel, curves: one(panel.curves) })).filter((panel) => panel.curves.length), senders: one(trace.senders) };
    });
  }
  function apart(traces) {
    const named = (at) => (it) => ({ ...it, name: traces.length > 1 ? `${"AB"[at]}: ${it.name}` : it.name, of: it.name });
    return traces.map((trace, at) => ({ ...trace, panels: trace.panels.map((panel) => ({ ...panel, curves: panel.curves.map(named(at)) })), senders: trace.senders.map(named(at)) }));
  }
  const along = (trace, axis) => data.traces.filter((other) => other.scenario === trace.scenario
    && Object.entries(trace.cell).every(([name, label]) => name === axis || other.cell[name] === label));

  // Lines across a box, so that a state is known without its colour. Avoidance is an empty box.
  const hatches = {
    "slow start": (x, y, w, h) => {
      const parts = [];
      for (let c = x - h; c < x + w; c += 8) {
        const [from, to] = [Math.max(c, x), Math.min(c + h, x + w)];
        if (to > from) parts.push([from, y + h - (from - c), to, y + h - (to - c)]);
      }
      return parts;
    },
    avoidance: () => [],
    "fast recovery": (x, y, w, h) => Array.from({ length: Math.max(1, Math.ceil(w / 4)) }, (_, at) => [x + at * 4, y, x + at * 4, y + h]),
    timeout: (x, y, w, h) => Array.from({ length: Math.floor(h / 4) }, (_, at) => [x, y + at * 4, x + w, y + at * 4]),
  };

  function traces(figure, width, style, exported) {
    const shown = figure.runs;
    const names = [...new Set(shown.flatMap((trace) => trace.panels.map((panel) => panel.name)))];
    const panels = names.map((name) => ({ name, of: shown.map((trace) => trace.panels.find((panel) => panel.name === name)) }));
    // In the order of the runs.
    const entries = [...new Set(shown.flatMap((trace) => trace.panels.flatMap((panel) => panel.curves.map((curve) => curve.name))))];
    const lanes = shown.flatMap((trace) => trace.senders);
    const phases = PHASES.filter((name) => lanes.some((lane) => lane.phases.some((phase) => phase[0] === name)));
    const colours = new Map(phases.map((name) => [name, name === "avoidance" ? style.soft : style.colour({ "slow start": 5, "fast recovery": 4, timeout: 1 }[name])]));
    const top = (exported ? 34 : 4) + legendLines([...entries, LIMIT, ...phases].map((name) => `${name}  `), width) * 24 + 22;
    const [high, gap, lane] = [130, 46, 34];
    const until = Math.max(...shown.map((trace) => trace.until));
    const series = [];
    panels.forEach(({ of }, at) => of.forEach((panel) => (panel?.curves || []).forEach((curve) => {
      const rank = entries.indexOf(curve.name);
      // A few markers, each curve's elsewhere.
      const step = Math.max(1, Math.floor(curve.points.length / 6));
      // Of runs that chose different units, the others take the first one's.
      const factor = { "B": 1, "kB": 1e3, "MB": 1e6 };
      const first = of.find((it) => it);
      const by = panel.unit === first.unit ? 1 : (factor[panel.unit] || 1) / (factor[first.unit] || 1);
      series.push({
        type: "line", clip: true, name: entries[rank], xAxisIndex: at, yAxisIndex: at, data: curve.points.map(([time, value]) => [time, value * by]), symbol: style.marker(rank), showSymbol: true, symbolSize: (_, { dataIndex }) => dataIndex % step === (rank * 5 + 2) % step ? 8 : 0, emphasis: { disabled: true }, z: 3,
        lineStyle: { width: 1.5, type: style.dash(rank), color: style.colour(rank) }, itemStyle: { color: style.colour(rank) },
      });
    })));
    const last = panels.length;
    phases.forEach((name) => {
      const some = lanes.flatMap((one, at) => one.phases.filter((phase) => phase[0] === name).map(([, from, to]) => [at, from, to]));
      const colour = colours.get(name);
      series.push({
        type: "custom", name, silent: true, z: 1, xAxisIndex: last, yAxisIndex: last, tooltip: { show: false }, itemStyle: { color: colour }, data: some.map(([at, from]) => [from, at]),
        renderItem: (params, api) => {
          const [at, from, to] = some[params.dataIndex];
          const [x, y] = api.coord([from, at]);
          const w = Math.max(1, api.coord([to, at])[0] - x);
          const [top, h] = [y + 17, 13];
          const fill = name === "avoidance" ? null : colour;
          const lines = hatches[name](x, top, w, h).map(([x1, y1, x2, y2]) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour, lineWidth: 1 } }));
          return { type: "group", children: [
            { type: "rect", shape: { x, y: top, width: w, height: h }, style: { fill, stroke: colour, lineWidth: 0.8, opacity: 0.35 } },
            { type: "rect", shape: { x, y: top, width: w, height: h }, style: { fill: null, stroke: colour, lineWidth: 0.8 } }, ...lines,
          ] };
        },
      });
    });
    if (lanes.length) series.push({
      type: "custom", silent: true, z: 2, xAxisIndex: last, yAxisIndex: last, tooltip: { show: false }, data: lanes.map((_, at) => [0, at]),
      renderItem: (params, api) => {
        const [x, y] = api.coord([0, params.dataIndex]);
        return { type: "text", style: { text: lanes[params.dataIndex].name, x, y: y + 14, fill: style.ink, fontSize: 11, fontFamily: SANS, verticalAlign: "bottom" } };
      },
    });
    const limits = panels.map(({ of }) => [...new Set(of.map((panel) => panel?.limit ?? null).filter((limit) => limit !== null))]);
    limits.forEach((some, at) => some.forEach((limit) => {
      series.push({
        type: "line", name: LIMIT, xAxisIndex: at, yAxisIndex: at, data: [[0, limit], [until, limit]], symbol: "none", silent: true, z: 2, emphasis: { disabled: true }, tooltip: { show: false },
        lineStyle: { width: 1.5, color: style.limit }, itemStyle: { color: style.limit },
      });
    }));
    const unit = (panel) => panel.of.find((it) => it).unit;
    // What waited for a lost segment comes all at once: such a peak goes beyond the axis.
    const largest = (at) => Math.min(
      series.filter((one) => one.yAxisIndex === at && one.type === "line").reduce((most, one) => Math.max(most, ...one.data.map((point) => point[1])), 0),
      limits[at].length ? Math.max(...limits[at]) * 1.5 : Infinity,
    );
    const rows = lanes.length ? [...panels, "state"] : panels;
    const option = {
      ...base(style, figure, exported, false),
      legend: { top: exported ? 30 : 0, left: 0, itemWidth: 34, itemHeight: 10, itemGap: 14, textStyle: { color: style.ink, fontSize: 12 }, data: [...entries.map((name, rank) => ({ name, icon: sample(rank, style), lineStyle: { width: 0 }, itemStyle: { borderWidth: 0 } })), ...(limits.some((some) => some.length) ? [{ name: LIMIT, icon: "path://M0 4h34v2h-34z", itemStyle: { color: style.limit } }] : []), ...phases.map((name) => ({ name, icon: "rect", itemStyle: name === "avoidance"
        ? { color: exported ? "#ffffff" : style.paper, borderColor: colours.get(name), borderWidth: 1 }
        : { color: colours.get(name), decal: style.pattern({ "slow start": 1, "fast recovery": 3, timeout: 4 }[name]) } }))] },
      grid: rows.map((_, at) => ({ left: 52, right: 14, top: top + at * (high + gap) + 14, height: at === last ? lanes.length * lane : high })),
      axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: style.soft } },
      tooltip: {
        ...tooltip(style), trigger: "axis", axisPointer: { type: "line" },
        formatter: (points) => {
          if (points.length === 0) return "";
          const own = points.filter((point) => point.componentSubType === "line" && point.seriesName !== LIMIT);
          const panelOf = (point) => panels[series[point.seriesIndex].yAxisIndex];
          const value = (point) => `${digits(point.value[1])} ${unit(panelOf(point))}`;
          const time = `${digits(points[0].axisValue)} s`;
          if (shown.length <= 2) return tip(time, own.map((point) => ({ colour: point.color, name: `${panelOf(point).name}, ${point.seriesName}`, value: value(point) })));
          // Of many runs a line each.
          const values = (name) => panels.map((panel) => own.find((point) => point.seriesName === name && panelOf(point) === panel)).map((point) => point ? value(point) : "–");
          return tip(`${time}: ${names.join(", ")}`, entries.map((name, rank) => ({ colour: style.colour(rank), name, value: values(name).join(", ") })));
        },
      },
      xAxis: rows.map((_, at) => ({
        type: "value", gridIndex: at, min: 0, max: until, name: at === rows.length - 1 ? "seconds" : "", nameLocation: "middle", nameGap: 22, nameTextStyle: { color: style.soft, fontSize: 11 },
        axisLabel: { color: style.soft, fontSize: 11, hideOverlap: true, showMaxLabel: false }, axisLine: { onZero: false, lineStyle: { color: style.ink } }, axisTick: { lineStyle: { color: style.ink } }, splitLine: { show: false },
      })),
      yAxis: rows.map((panel, at) => panel === "state"
        ? { ...valueAxis(style, "state of the sender"), gridIndex: at, max: lanes.length, inverse: true, nameLocation: "start", axisLabel: { show: false }, splitLine: { show: false } }
        : { ...valueAxis(style, `${panel.name}, ${unit(panel)}`), gridIndex: at, ...scale(largest(at) * 1.05) }),
      series,
    };
    return { option, height: top + last * (high + gap) + (lanes.length ? lanes.length * lane + gap : 0) + 20 };
  }

  function start(pictures) {
    const [cell, beside, sender] = ["cell", "beside", "sender"].map((id) => document.getElementById(id));
    const option = (value, text) => {
      const made = element("option", text);
      made.value = value;
      return made;
    };
    const group = (label, options) => {
      const made = element("optgroup");
      made.label = label;
      made.append(...options);
      return options.length ? [made] : [];
    };
    const cells = () => data.traces.map((trace, at) => option(String(at), trace.title));
    const fill = (select, options) => {
      const before = select.value;
      select.replaceChildren(...options);
      select.value = before;
      if (select.selectedIndex < 0) select.selectedIndex = 0;
    };
    fill(cell, cells());
    const tell = () => {
      const first = data.traces[Number(cell.value)];
      const axes = first.at.filter(({ axis }) => along(first, axis).length > 1);
      fill(beside, [
        option("", "nothing"),
        ...group("all along an axis", axes.map(({ axis, name }) => option(`along ${axis}`, `each ${name}`))),
        ...group("another cell", cells()),
      ]);
      const axis = axes.find((it) => beside.value === `along ${it.axis}`);
      const all = axis ? along(first, axis.axis) : [];
      // No more than can be told apart.
      const count = Math.min(all.length, styles.dashes.length);
      const traces = axis ? Array.from({ length: count }, (_, at) => all[Math.floor(at * all.length / count)])
        : [first, ...(beside.value === "" ? [] : [data.traces[Number(beside.value)]])];
      const legs = new Set(traces.flatMap((trace) => trace.panels.flatMap((panel) => panel.curves.filter((curve) => curve.leg).map((curve) => curve.name))));
      sender.parentElement.hidden = !axis || !legs.size;
      fill(sender, [option(LONGEST, "with the longest round trip"), option(OWN, "of the transfer itself"), ...[...legs].map((name) => option(name, name))]);
      chosen.runs = axis ? together(traces, axis.axis, sender.value) : apart(traces);
      if (axis) {
        const others = first.at.filter((it) => it !== axis).map((it) => it.words);
        const seeds = [...new Set(traces.map((trace) => trace.seed))];
        chosen.title = `${first.scenario}: ${[...others, `each ${axis.name}`].join(" · ")}, ${seeds.length > 1 ? "seeds" : "seed"} ${seeds.join(", ")}`;
      } else {
        chosen.title = traces.map((trace, at) => `${traces.length > 1 ? `${"AB"[at]}: ` : ""}${trace.title}, seed ${trace.seed}`).join(" — ");
      }
      holder.querySelector("h4").textContent = chosen.title;
      const caption = holder.querySelector("figcaption");
      caption.textContent = "Goodput is the mean over the second before; what waited for a lost segment counts when the path can have carried it. "
        + (axis ? `Of each, windows, round trips and state are those of one sender${legs.size ? ": the one chosen, else the transfer's own" : ""}; of several flows it is the first.${count < all.length ? ` ${count} of ${all.length} are shown.` : ""}`
          : "Window and round trip of the transfer are those of its own sender, behind a proxy as far as that; a proxy's are of the leg that it sends on.")
        + (chosen.runs.some((trace) => trace.senders.length) ? " Where a sender has no box, nothing of it was on its way." : "");
      let commands = caption;
      if (axis) {
        commands = element("details");
        commands.append(element("summary", "The commands that run them again"));
        caption.append(commands);
      }
      for (const { command } of traces) {
        const again = element("code", command);
        again.className = "again";
        commands.append(again);
      }
    };
    const change = () => { tell(); pictures.again("trace"); };
    for (const select of [cell, beside, sender]) select.addEventListener("change", change);
    tell();
  }
  // What the picture shows, for other programs.
  function csv() {
    const cell = (value) => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
    const rows = [["cell", "seed", "quantity", "of", "unit", "time_s", "until_s", "value"]];
    for (const { title, seed, panels, senders } of chosen.runs) {
      for (const { name, unit, curves } of panels) {
        for (const curve of curves) for (const [time, value] of curve.points) rows.push([title, seed, name, curve.of, unit, time, "", value]);
      }
      for (const { of, phases } of senders) for (const [phase, from, until] of phases) rows.push([title, seed, "state", of, "", from, until, phase]);
    }
    return rows.map((row) => row.map(cell).join(",") + "\n").join("");
  }
  return { made: [chosen, traces], start, csv };
};

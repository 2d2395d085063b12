"use strict";
// Draws what the page's JSON holds. It computes nothing that a reader could take for a result.
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const darkness = window.matchMedia("(prefers-color-scheme: dark)");
  const charts = new Map();

  // Okabe and Ito's colours, each with a dash, a marker and a pattern of its own, so that a curve is
  // known without its colour.
  const COLOURS = {
    light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"],
    dark: ["#4da6e0", "#f0803c", "#2fbf93", "#dd9cc2", "#f0b62e", "#93d3f7", "#c8c8c8"],
  };
  const INK = {
    light: { ink: "#1b1d21", soft: "#5c6068", rule: "#e3e3de", paper: "#fdfdfb", limit: "#1b1d21" },
    dark: { ink: "#e4e5e7", soft: "#a0a5ad", rule: "#30343b", paper: "#16181c", limit: "#f4f4f4" },
  };
  const DASHES = ["solid", [9, 4], [2, 3], [12, 3, 2, 3], [5, 2], [16, 5], [6, 2, 2, 2, 2, 2]];
  const MARKERS = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect", "emptyTriangle"];
  const stripes = (rotation, width, gap) => ({
    symbol: "rect", dashArrayX: [1, 0], dashArrayY: [width, gap], rotation, symbolSize: 1,
  });
  const PATTERNS = [
    { symbol: "none" },
    stripes(-Math.PI / 4, 2, 5),
    { symbol: "circle", dashArrayX: [[7, 7], [0, 7, 7, 0]], dashArrayY: [7, 0], symbolSize: 0.55 },
    stripes(Math.PI / 2, 2, 5),
    stripes(0, 2, 5),
    stripes(Math.PI / 4, 2, 5),
    { symbol: "rect", dashArrayX: [[5, 5], [0, 5, 5, 0]], dashArrayY: [5, 0], symbolSize: 0.8 },
  ];
  const LIMIT = "physical limit";
  const SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

  const look = (dark) => {
    const of = (list) => (i) => list[i % list.length];
    return {
      ...INK[dark ? "dark" : "light"],
      colour: of(COLOURS[dark ? "dark" : "light"]),
      dash: of(DASHES),
      marker: of(MARKERS),
      pattern: (i) => ({ ...PATTERNS[i % PATTERNS.length], color: dark ? "rgba(0,0,0,.5)" : "rgba(255,255,255,.6)" }),
    };
  };

  // Three digits; another number of the same sentence takes the decimals of the first.
  const digits = (value, like = value) => {
    const size = Math.abs(like);
    return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
  };

  // Elements, not markup: names come from files.
  const element = (tag, text, style) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (style) Object.assign(made.style, style);
    return made;
  };
  const tip = (title, lines) => {
    const box = element("div");
    box.className = "tip";
    if (title) box.append(element("b", title));
    for (const { colour, name, value } of lines) {
      const line = element("div");
      line.append(element("i", undefined, { borderColor: colour }), element("span", name), element("em", value));
      box.append(line);
    }
    return box;
  };
  const tooltip = (style) => ({
    confine: true, transitionDuration: 0, backgroundColor: style.paper, borderColor: style.soft, borderWidth: 1,
    padding: [6, 9], textStyle: { color: style.ink, fontSize: 12, fontWeight: "normal" },
    extraCssText: "box-shadow: 0 1px 6px rgba(0,0,0,.18)",
  });

  // How many lines a legend of these names takes, so that the plot begins below it.
  const legendLines = (names, width) => {
    let lines = 1, used = 0;
    for (const name of names) {
      const size = name.length * 7 + 52;
      if (used + size > width && used > 0) { lines += 1; used = 0; }
      used += size;
    }
    return lines;
  };
  const base = (style, figure, exported, patterned) => ({
    animation: false,
    backgroundColor: exported ? "#ffffff" : "transparent",
    textStyle: { fontFamily: SANS, color: style.ink },
    aria: { enabled: true, decal: { show: patterned }, label: { enabled: false } },
    title: exported ? [{ text: figure.title, left: 8, top: 6, textStyle: { fontSize: 14, fontWeight: 600, color: style.ink } }] : [],
  });
  const valueAxis = (style, name) => ({
    type: "value", min: 0, name, nameLocation: "end", nameGap: 10,
    nameTextStyle: { color: style.soft, align: "left", padding: [0, 0, 0, -36], fontSize: 11 },
    axisLabel: { color: style.soft, fontSize: 11, hideOverlap: true },
    axisLine: { show: false }, axisTick: { show: false }, splitLine: { lineStyle: { color: style.rule } },
  });

  function bars(figure, width, style, exported) {
    const names = figure.series.map((series) => data.configurations[series.configuration]);
    const hasLimit = figure.limits.some((limit) => limit !== null);
    const legend = hasLimit ? [...names, LIMIT] : names;
    const top = (exported ? 34 : 4) + legendLines(legend, width) * 24 + 26;
    const plotHeight = 270;
    const room = (width - 60) / (figure.conditions.length * (names.length + 0.6));
    const shape = { barGap: "10%", barCategoryGap: "26%" };
    const series = figure.series.map((one, place) => ({
      type: "bar", name: names[place], ...shape, cursor: "default",
      itemStyle: { color: style.colour(one.configuration), decal: style.pattern(one.configuration) },
      emphasis: { disabled: true },
      data: one.values.map((bar) => bar === null ? null : {
        value: bar.value,
        itemStyle: {
          opacity: bar.valid ? 1 : 0.35,
          ...(bar.at_least ? { borderColor: style.ink, borderType: "dashed", borderWidth: 1, opacity: 0.55 } : {}),
        },
      }),
    }));
    // Whiskers and numbers above the bars; they must know where a bar stands among the visible ones.
    figure.series.forEach((one, place) => series.push({
      type: "custom", name: names[place], silent: true, z: 4, tooltip: { show: false },
      itemStyle: { color: style.colour(one.configuration) },
      data: one.values.map((bar, index) => [index, bar === null ? 0 : bar.value]),
      renderItem: (params, api) => {
        const bar = one.values[params.dataIndex];
        if (bar === null) return null;
        const visible = api.currentSeriesIndices().filter((index) => index < names.length);
        const slot = api.barLayout({ ...shape, count: visible.length })[visible.indexOf(place)];
        if (!slot) return null;
        const half = bar.half_width || 0;
        const [middle, upper] = api.coord([params.dataIndex, bar.value + half]);
        const lower = api.coord([params.dataIndex, Math.max(0, bar.value - half)])[1];
        const x = middle + slot.offsetCenter;
        const parts = [];
        if (half > 0) {
          const reach = Math.min(5, slot.width / 4);
          const line = { stroke: style.ink, lineWidth: 1.2, fill: null };
          parts.push(
            { type: "line", shape: { x1: x, y1: upper, x2: x, y2: lower }, style: line },
            { type: "line", shape: { x1: x - reach, y1: upper, x2: x + reach, y2: upper }, style: line },
            { type: "line", shape: { x1: x - reach, y1: lower, x2: x + reach, y2: lower }, style: line },
          );
        }
        if (room >= 19) {
          const mark = bar.valid ? (bar.at_least ? (figure.unit === "s" ? "> " : "… ") : "") : "✗ ";
          const text = mark + (room >= 34 ? digits(bar.value) : bar.value >= 9.95 ? bar.value.toFixed(0) : bar.value.toFixed(1));
          parts.push({
            type: "text",
            style: { text, x, y: upper - 4, align: "center", verticalAlign: "bottom", fill: style.ink, fontSize: room >= 34 ? 11 : 10, fontFamily: SANS, stroke: exported ? "#ffffff" : style.paper, lineWidth: 3 },
          });
        }
        return { type: "group", children: parts };
      },
    }));
    if (hasLimit) {
      series.push({
        type: "custom", name: LIMIT, silent: true, z: 5, tooltip: { show: false }, itemStyle: { color: style.limit },
        data: figure.limits.flatMap((limit, index) => limit === null ? [] : [[index, limit]]),
        renderItem: (params, api) => {
          const [x, y] = api.coord([api.value(0), api.value(1)]);
          const reach = api.size([1, 0])[0] * 0.42;
          return { type: "line", shape: { x1: x - reach, y1: y, x2: x + reach, y2: y }, style: { stroke: style.limit, lineWidth: 2 } };
        },
      });
    }
    const tops = figure.series.flatMap((one) => one.values.flatMap((bar) => bar === null ? [] : [bar.value + (bar.half_width || 0)]));
    const largest = Math.max(...tops, ...figure.limits.filter((limit) => limit !== null), 0);
    const option = {
      ...base(style, figure, exported, true),
      legend: {
        top: exported ? 30 : 0, left: 0, itemWidth: 20, itemHeight: 11, itemGap: 14, textStyle: { color: style.ink, fontSize: 12 },
        data: legend.map((name) => name === LIMIT ? { name, icon: "path://M0 4h20v2H0z", itemStyle: { color: style.limit } } : { name }),
      },
      grid: { left: 46, right: 10, top, height: plotHeight - 30 },
      tooltip: {
        ...tooltip(style), trigger: "axis", axisPointer: { type: "shadow", z: 0, shadowStyle: { color: style.rule, opacity: 0.45 } },
        formatter: (points) => {
          const group = points[0].dataIndex;
          const lines = figure.series.flatMap((one, place) => {
            const bar = one.values[group];
            if (bar === null) return [];
            const spread = bar.half_width ? ` ± ${digits(bar.half_width, bar.value)}` : "";
            const bound = bar.at_least && figure.unit === "s" ? "> " : "";
            return [{ colour: style.colour(one.configuration), name: names[place] + (bar.note ? ` (${bar.note})` : ""), value: `${bound}${digits(bar.value)}${spread} ${figure.unit}` }];
          });
          const limit = figure.limits[group];
          if (limit !== null) lines.push({ colour: style.limit, name: LIMIT, value: `${digits(limit)} ${figure.unit}` });
          return tip(figure.conditions[group], lines);
        },
      },
      xAxis: {
        type: "category", data: figure.conditions, axisTick: { show: false }, axisLine: { lineStyle: { color: style.ink } },
        axisLabel: { color: style.ink, fontSize: 12, interval: 0, overflow: "break", width: (width - 60) / figure.conditions.length },
      },
      yAxis: { ...valueAxis(style, figure.axis), ...scale(largest * 1.06) },
      series,
    };
    return { option, height: top + plotHeight };
  }

  // An axis from zero to a round number, in three to six round steps.
  function scale(largest) {
    if (!(largest > 0)) return { max: 1, interval: 0.5 };
    const power = 10 ** Math.floor(Math.log10(largest));
    const interval = [0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5].map((step) => step * power).find((step) => largest / step <= 5.001);
    return { max: interval * Math.ceil(largest / interval - 1e-9), interval };
  }

  // A dash as in the plot with the curve's marker on it, 34 by 10.
  function sample(rank, style) {
    const dash = style.dash(rank);
    const steps = dash === "solid" ? [34] : dash;
    let path = "";
    for (let x = 0, i = 0; x < 34; x += steps[i % steps.length], i += 1) {
      const length = Math.min(steps[i % steps.length], 34 - x);
      if (i % 2 === 0) path += `M${x} 4.1h${length}v1.8h${-length}z`;
    }
    const marks = {
      circle: "M13.5 5a3.5 3.5 0 1 1 7 0a3.5 3.5 0 1 1 -7 0z", rect: "M13.7 1.7h6.6v6.6h-6.6z",
      triangle: "M17 1l4 7.4h-8z", diamond: "M17 .8l4.2 4.2l-4.2 4.2l-4.2 -4.2z",
    };
    const mark = style.marker(rank).replace(/^empty(.)/, (_, first) => first.toLowerCase());
    // Two points at the corners keep every icon the same size.
    return `path://M0 0h.01v.01h-.01zM33.99 9.99h.01v.01h-.01z${path}${marks[mark]}`;
  }

  function lines(figure, width, style, exported) {
    const shown = [...new Set(figure.curves.map((curve) => curve.configuration))].sort((a, b) => a - b);
    const nameOf = (curve) => data.configurations[curve.configuration] + (curve.leg === null ? "" : ` (${curve.leg})`);
    // A configuration's own sender first, then its proxy's leg.
    const entries = new Map(shown.flatMap((configuration) => figure.curves
      .filter((curve) => curve.configuration === configuration)
      .sort((a, b) => (a.leg !== null) - (b.leg !== null))
      .map((curve) => [nameOf(curve), curve])));
    const names = [...entries.keys()];
    const proxied = new Set(figure.curves.filter((curve) => curve.leg !== null).map((curve) => curve.configuration));
    // Behind a proxy the own sender's view is the lesser one.
    const isFaint = (curve) => curve.leg === null && proxied.has(curve.configuration);
    const hasLimit = figure.limits.some((limit) => limit !== null);
    const legend = hasLimit ? [...names, LIMIT] : names;
    const columns = width < 640 ? 1 : Math.min(figure.panels.length, 3);
    const rows = Math.ceil(figure.panels.length / columns);
    const titled = figure.panels.some((panel) => panel !== "");
    const head = (exported ? 34 : 4) + legendLines(legend, width) * 24 + 18;
    const [left, gap, panelTitle, panelHeight, panelFoot] = [46, 50, titled ? 22 : 6, columns === 1 && figure.panels.length === 1 ? 250 : 180, 40];
    const panelWidth = (width - left - 14 - (columns - 1) * gap) / columns;
    const place = (index) => ({
      left: left + (index % columns) * (panelWidth + gap),
      top: head + panelTitle + Math.floor(index / columns) * (panelTitle + panelHeight + panelFoot),
    });
    const values = figure.curves.flatMap((curve) => curve.points.filter((point) => point[0] <= figure.until).map((point) => point[1]));
    const largest = values.concat(figure.limits.filter((limit) => limit !== null)).reduce((a, b) => Math.max(a, b), 0);
    const last = figure.until > 0 ? figure.until : 1;
    const series = figure.curves.map((curve) => {
      const rank = shown.indexOf(curve.configuration);
      const seen = curve.points.filter((point) => point[0] <= last).length;
      const every = Math.max(6, Math.round(seen / 7));
      const phase = Math.round((every * (rank + 0.5)) / shown.length);
      return {
        type: "line", name: nameOf(curve), xAxisIndex: curve.panel, yAxisIndex: curve.panel,
        data: curve.points, connectNulls: false, showAllSymbol: true, clip: true, z: 2 + shown.length - rank, cursor: "default",
        symbol: (_, params) => params.dataIndex % every === phase ? style.marker(curve.configuration) : "none",
        symbolSize: 6,
        lineStyle: { width: isFaint(curve) ? 1 : curve.flow === null ? 1.8 : 1.2, opacity: isFaint(curve) ? 0.45 : 1, type: style.dash(curve.configuration), color: style.colour(curve.configuration) },
        itemStyle: { color: style.colour(curve.configuration), opacity: isFaint(curve) ? 0.45 : 1 },
        emphasis: { disabled: true },
        flow: curve.flow,
      };
    });
    figure.limits.forEach((limit, index) => {
      if (limit === null) return;
      series.push({
        type: "line", name: LIMIT, xAxisIndex: index, yAxisIndex: index, data: [[0, limit], [last, limit]], symbol: "none", silent: true, z: 1,
        lineStyle: { width: 1.3, type: [6, 4], color: style.limit }, itemStyle: { color: style.limit }, emphasis: { disabled: true }, tooltip: { show: false },
      });
    });
    const option = {
      ...base(style, figure, exported, false),
      legend: {
        top: exported ? 30 : 0, left: 0, itemWidth: 34, itemHeight: 10, itemGap: 14, textStyle: { color: style.ink, fontSize: 12 },
        data: legend.map((name) => name === LIMIT
          ? { name, icon: "path://M0 0h.01v.01h-.01zM33.99 9.99h.01v.01h-.01zM0 4.3h7v1.4h-7zM11 4.3h7v1.4h-7zM22 4.3h7v1.4h-7z", itemStyle: { color: style.limit } }
          : { name, icon: sample(entries.get(name).configuration, style), lineStyle: { width: 0 }, itemStyle: { borderWidth: 0, opacity: isFaint(entries.get(name)) ? 0.45 : 1 } }),
      },
      axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: style.soft } },
      tooltip: {
        ...tooltip(style), trigger: "axis", axisPointer: { type: "line" },
        formatter: (points) => {
          const time = points[0].axisValue;
          const near = points.filter((point) => point.seriesName !== LIMIT && Math.abs(point.value[0] - time) <= Math.max(last * 0.015, 1e-3));
          const panel = points.length ? figure.panels[figure.curves[points[0].seriesIndex]?.panel ?? 0] : "";
          return tip(`${panel ? `${panel}, ` : ""}${digits(time)} s`, near.slice(0, 16).map((point) => {
            const curve = figure.curves[point.seriesIndex];
            const flow = curve.flow !== null && figure.curves.some((other) => other.flow > 0) ? ` [${curve.flow}]` : "";
            return { colour: style.colour(curve.configuration), name: point.seriesName + flow, value: `${digits(point.value[1])} ${figure.unit}` };
          }));
        },
      },
      grid: figure.panels.map((_, index) => ({ ...place(index), width: panelWidth, height: panelHeight })),
      xAxis: figure.panels.map((_, index) => ({
        type: "value", gridIndex: index, min: 0, max: last, name: "seconds", nameLocation: "middle", nameGap: 22,
        nameTextStyle: { color: style.soft, fontSize: 11 }, axisLabel: { color: style.soft, fontSize: 11, hideOverlap: true, showMaxLabel: false },
        axisLine: { lineStyle: { color: style.ink } }, axisTick: { lineStyle: { color: style.ink } }, splitLine: { show: false }, splitNumber: 5,
      })),
      yAxis: figure.panels.map((_, index) => ({
        ...valueAxis(style, index === 0 ? figure.axis : ""), gridIndex: index, ...scale(largest),
        nameGap: titled ? 26 : 10,
      })),
      series,
    };
    option.title = option.title.concat(titled ? figure.panels.map((panel, index) => ({
      text: panel, left: place(index).left + panelWidth / 2, top: place(index).top - 20, textAlign: "center", padding: 0,
      textStyle: { fontSize: 12, fontWeight: 600, color: style.ink },
    })) : []);
    return { option, height: head + rows * (panelTitle + panelHeight + panelFoot) };
  }

  const makers = new Map([
    ...data.bars.map((figure) => [figure.id, [figure, bars]]),
    ...data.lines.map((figure) => [figure.id, [figure, lines]]),
  ]);

  function draw(holder) {
    const [figure, maker] = makers.get(holder.id);
    const plot = holder.querySelector(".plot");
    const width = plot.clientWidth;
    if (width === 0) return;
    const known = charts.get(holder.id);
    if (known && known.width === width && known.dark === darkness.matches) return;
    const { option, height } = maker(figure, width, look(darkness.matches), false);
    plot.style.height = `${height}px`;
    if (known) known.chart.dispose();
    const chart = echarts.init(plot, null, { renderer: "svg", width, height });
    chart.setOption(option);
    if (known) {
      for (const [name, on] of Object.entries(known.selected())) {
        if (!on) chart.dispatchAction({ type: "legendUnSelect", name });
      }
    }
    const selected = () => chart.getOption().legend[0].selected || {};
    charts.set(holder.id, { chart, width, dark: darkness.matches, selected });
  }

  // The picture as a file's address: SVG as a blob, PNG as data. Always dark on white, for paper.
  function picture(holder, kind) {
    const [figure, maker] = makers.get(holder.id);
    const width = 960;
    const { option, height } = maker(figure, width, look(false), true);
    const known = charts.get(holder.id);
    if (known) option.legend.selected = known.selected();
    const away = kind === "svg"
      ? echarts.init(null, null, { renderer: "svg", ssr: true, width, height })
      : echarts.init(element("div", undefined, { width: `${width}px`, height: `${height}px` }), null, { renderer: "canvas", width, height, devicePixelRatio: 3 });
    away.setOption(option);
    const address = kind === "svg"
      ? URL.createObjectURL(new Blob([away.renderToSVGString()], { type: "image/svg+xml" }))
      : away.getDataURL({ type: "png", pixelRatio: 3, backgroundColor: "#ffffff" });
    away.dispose();
    return { address, name: `${figure.title.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").toLowerCase() || "figure"}.${kind}` };
  }

  function save(holder, kind) {
    const link = document.createElement("a");
    const { address, name } = picture(holder, kind);
    link.href = address;
    link.download = name;
    link.click();
    if (kind === "svg") setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  const holders = () => [...document.querySelectorAll("figure[id]")];
  const open = (holder) => !holder.closest("details:not([open])");
  const drawAll = () => holders().filter(open).forEach(draw);

  // One by one, so that the words can be read while the pictures come.
  const queue = holders().filter(open);
  const next = () => {
    const holder = queue.shift();
    if (!holder) {
      document.documentElement.dataset.drawn = String(charts.size);
      document.dispatchEvent(new Event("drawn"));
      return;
    }
    draw(holder);
    setTimeout(next, 0);
  };
  next();

  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 120); });
  darkness.addEventListener("change", drawAll);
  document.addEventListener("toggle", drawAll, true);
  document.addEventListener("click", (event) => {
    const kind = event.target.dataset?.save;
    if (kind) save(event.target.closest("figure"), kind);
  });
  // For scripts that want every picture as a file.
  window.midhopReport = { picture: (id, kind) => picture(document.getElementById(id), kind) };
})();

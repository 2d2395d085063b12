"use strict";
// Draws one run over time, or two, when a reader asks for them.
window.midhopTrace = (data) => {
  const { LIMIT, digits, tip, tooltip, legendLines, base, valueAxis, scale, element } = drawing;
  const holder = document.getElementById("trace");
  if (!holder || !data.traces.length) return null;
  const PHASES = ["slow start", "avoidance", "fast recovery", "timeout"];
  const chosen = { title: "one run over time", traces: [data.traces[0]] };

  // Lines across a box, so that a phase is known without its colour.
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
    const shown = figure.traces;
    const names = [...new Set(shown.flatMap((trace) => trace.panels.map((panel) => panel.name)))];
    const panels = names.map((name) => ({ name, of: shown.map((trace) => trace.panels.find((panel) => panel.name === name)) }));
    const label = (trace, curve) => shown.length > 1 ? `${"AB"[trace]}: ${curve.name}` : curve.name;
    const entries = [...new Set(panels.flatMap(({ of }) => of.flatMap((panel, trace) => (panel?.curves || []).map((curve) => label(trace, curve)))))];
    const phases = PHASES.filter((name) => name !== "avoidance" && shown[0].phases.some((phase) => phase[0] === name));
    const colours = new Map(phases.map((name) => [name, style.colour({ "slow start": 5, "fast recovery": 4, timeout: 1 }[name])]));
    const top = (exported ? 34 : 4) + legendLines([...entries, LIMIT, ...phases].map((name) => `${name}  `), width) * 24 + 22;
    const [high, gap] = [130, 46];
    const until = Math.max(...shown.map((trace) => trace.until));
    const series = [];
    panels.forEach(({ of }, at) => of.forEach((panel, trace) => (panel?.curves || []).forEach((curve) => {
      const rank = entries.indexOf(label(trace, curve));
      // Of two runs that chose different units, the second takes the first one's.
      const factor = { "B": 1, "kB": 1e3, "MB": 1e6 };
      const first = of.find((it) => it);
      const by = panel.unit === first.unit ? 1 : (factor[panel.unit] || 1) / (factor[first.unit] || 1);
      series.push({
        type: "line", clip: true, name: entries[rank], xAxisIndex: at, yAxisIndex: at, data: curve.points.map(([time, value]) => [time, value * by]), showSymbol: false, emphasis: { disabled: true }, z: 3,
        lineStyle: { width: 1.5, type: style.dash(rank), color: style.colour(rank) }, itemStyle: { color: style.colour(rank) },
      });
    })));
    const window_ = panels.findIndex((panel) => panel.name === "congestion window");
    if (window_ >= 0) phases.forEach((name) => {
      const some = shown[0].phases.filter((phase) => phase[0] === name);
      const colour = colours.get(name);
      series.push({
        type: "custom", name, silent: true, z: 1, xAxisIndex: window_, yAxisIndex: window_, clip: true, tooltip: { show: false }, itemStyle: { color: colour }, data: some.map((phase) => [phase[1], 0]),
        renderItem: (params, api) => {
          const [, from, to] = some[params.dataIndex];
          const box = params.coordSys;
          const [x, end] = [api.coord([from, 0])[0], api.coord([to, 0])[0]];
          const w = Math.max(1, end - x);
          const lines = hatches[name](x, box.y, w, box.height).map(([x1, y1, x2, y2]) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour, lineWidth: 1, opacity: 0.7 } }));
          return { type: "group", children: [{ type: "rect", shape: { x, y: box.y, width: w, height: box.height }, style: { fill: colour, opacity: 0.22 } }, ...lines] };
        },
      });
    });
    const limits = panels.map(({ of }) => of.find((panel) => panel && panel.limit !== null)?.limit ?? null);
    limits.forEach((limit, at) => {
      if (limit === null) return;
      series.push({
        type: "line", name: LIMIT, xAxisIndex: at, yAxisIndex: at, data: [[0, limit], [until, limit]], symbol: "none", silent: true, z: 2, emphasis: { disabled: true }, tooltip: { show: false },
        lineStyle: { width: 1.5, color: style.limit }, itemStyle: { color: style.limit },
      });
    });
    const unit = (panel) => panel.of.find((it) => it).unit;
    // What waited for a lost segment comes all at once: such a peak goes beyond the axis.
    const largest = (at) => Math.min(
      series.filter((one) => one.yAxisIndex === at && one.type === "line").reduce((most, one) => Math.max(most, ...one.data.map((point) => point[1])), 0),
      limits[at] === null ? Infinity : limits[at] * 1.5,
    );
    const option = {
      ...base(style, figure, exported, false),
      legend: { top: exported ? 30 : 0, left: 0, itemWidth: 28, itemHeight: 10, itemGap: 14, textStyle: { color: style.ink, fontSize: 12 }, data: [...entries.map((name) => ({ name })), ...(limits.some((limit) => limit !== null) ? [{ name: LIMIT }] : []), ...phases.map((name) => ({ name, icon: "rect", itemStyle: { color: colours.get(name), decal: style.pattern({ "slow start": 1, "fast recovery": 3, timeout: 4 }[name]) } }))] },
      grid: panels.map((_, at) => ({ left: 52, right: 14, top: top + at * (high + gap) + 14, height: high })),
      axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: style.soft } },
      tooltip: {
        ...tooltip(style), trigger: "axis", axisPointer: { type: "line" },
        formatter: (points) => tip(`${digits(points[0].axisValue)} s`, points.filter((point) => point.componentSubType === "line" && point.seriesName !== LIMIT).map((point) => {
          const panel = panels[series[point.seriesIndex].yAxisIndex];
          return { colour: point.color, name: `${panel.name}, ${point.seriesName}`, value: `${digits(point.value[1])} ${unit(panel)}` };
        })),
      },
      xAxis: panels.map((_, at) => ({
        type: "value", gridIndex: at, min: 0, max: until, name: at === panels.length - 1 ? "seconds" : "", nameLocation: "middle", nameGap: 22, nameTextStyle: { color: style.soft, fontSize: 11 },
        axisLabel: { color: style.soft, fontSize: 11, hideOverlap: true, showMaxLabel: false }, axisLine: { lineStyle: { color: style.ink } }, axisTick: { lineStyle: { color: style.ink } }, splitLine: { show: false },
      })),
      yAxis: panels.map((panel, at) => ({ ...valueAxis(style, `${panel.name}, ${unit(panel)}`), gridIndex: at, ...scale(largest(at) * 1.05) })),
      series,
    };
    return { option, height: top + panels.length * (high + gap) + 20 };
  }

  function start(pictures) {
    const [cell, beside] = ["cell", "beside"].map((id) => document.getElementById(id));
    data.traces.forEach((trace, at) => {
      for (const select of [cell, beside]) {
        const option = element("option", trace.title);
        option.value = String(at);
        select.append(option);
      }
    });
    const tell = () => {
      chosen.traces = [cell.value, beside.value].filter((value) => value !== "").map((value) => data.traces[Number(value)]);
      const names = chosen.traces.map((trace, at) => `${chosen.traces.length > 1 ? `${"AB"[at]}: ` : ""}${trace.title}, seed ${trace.seed}`);
      chosen.title = names.join(" — ");
      holder.querySelector("h4").textContent = chosen.title;
      holder.querySelector("figcaption").textContent = "Peaks of goodput beyond the axis are data that had arrived before and waited for a lost segment." + (chosen.traces[0].phases.length
        ? " Behind the window of the first: hatched where its sender was in slow start, fast recovery or after a timeout; blank in congestion avoidance." : "");
    };
    const change = () => { tell(); pictures.again("trace"); };
    for (const select of [cell, beside]) select.addEventListener("change", change);
    tell();
  }
  return { made: [chosen, traces], start };
};

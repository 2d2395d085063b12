"use strict";
// Draws one run over time, or two, when a reader asks for them.
window.midhopTrace = (data) => {
  const { LIMIT, SANS, digits, tip, tooltip, legendLines, base, valueAxis, scale, element } = drawing;
  const holder = document.getElementById("trace");
  if (!holder || !data.traces.length) return null;
  const PHASES = ["slow start", "avoidance", "fast recovery", "timeout"];
  const chosen = { title: "one run over time", traces: [data.traces[0]] };

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
    const shown = figure.traces;
    const names = [...new Set(shown.flatMap((trace) => trace.panels.map((panel) => panel.name)))];
    const panels = names.map((name) => ({ name, of: shown.map((trace) => trace.panels.find((panel) => panel.name === name)) }));
    const label = (trace, curve) => shown.length > 1 ? `${"AB"[trace]}: ${curve.name}` : curve.name;
    const entries = [...new Set(panels.flatMap(({ of }) => of.flatMap((panel, trace) => (panel?.curves || []).map((curve) => label(trace, curve)))))];
    const lanes = shown.flatMap((trace, at) => trace.senders.map((sender) => ({ name: label(at, sender), phases: sender.phases })));
    const phases = PHASES.filter((name) => lanes.some((lane) => lane.phases.some((phase) => phase[0] === name)));
    const colours = new Map(phases.map((name) => [name, name === "avoidance" ? style.soft : style.colour({ "slow start": 5, "fast recovery": 4, timeout: 1 }[name])]));
    const top = (exported ? 34 : 4) + legendLines([...entries, LIMIT, ...phases].map((name) => `${name}  `), width) * 24 + 22;
    const [high, gap, lane] = [130, 46, 34];
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
    const rows = lanes.length ? [...panels, "state"] : panels;
    const option = {
      ...base(style, figure, exported, false),
      legend: { top: exported ? 30 : 0, left: 0, itemWidth: 28, itemHeight: 10, itemGap: 14, textStyle: { color: style.ink, fontSize: 12 }, data: [...entries.map((name) => ({ name })), ...(limits.some((limit) => limit !== null) ? [{ name: LIMIT }] : []), ...phases.map((name) => ({ name, icon: "rect", itemStyle: name === "avoidance"
        ? { color: exported ? "#ffffff" : style.paper, borderColor: colours.get(name), borderWidth: 1 }
        : { color: colours.get(name), decal: style.pattern({ "slow start": 1, "fast recovery": 3, timeout: 4 }[name]) } }))] },
      grid: rows.map((_, at) => ({ left: 52, right: 14, top: top + at * (high + gap) + 14, height: at === last ? lanes.length * lane : high })),
      axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: style.soft } },
      tooltip: {
        ...tooltip(style), trigger: "axis", axisPointer: { type: "line" },
        formatter: (points) => points.length === 0 ? "" : tip(`${digits(points[0].axisValue)} s`, points.filter((point) => point.componentSubType === "line" && point.seriesName !== LIMIT).map((point) => {
          const panel = panels[series[point.seriesIndex].yAxisIndex];
          return { colour: point.color, name: `${panel.name}, ${point.seriesName}`, value: `${digits(point.value[1])} ${unit(panel)}` };
        })),
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
      const caption = holder.querySelector("figcaption");
      caption.textContent = "Peaks of goodput beyond the axis are data that had arrived before and waited for a lost segment. "
        + "Window and round trip of the transfer are those of its own sender, behind a proxy as far as that; a proxy's are of the leg that it sends on."
        + (chosen.traces.some((trace) => trace.senders.length) ? " Where a sender has no box, nothing of it was on its way." : "");
      for (const { command } of chosen.traces) {
        const again = element("code", command);
        again.className = "again";
        caption.append(again);
      }
    };
    const change = () => { tell(); pictures.again("trace"); };
    for (const select of [cell, beside]) select.addEventListener("change", change);
    tell();
  }
  // What the picture shows, for other programs.
  function csv() {
    const cell = (value) => /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
    const rows = [["cell", "seed", "quantity", "of", "unit", "time_s", "until_s", "value"]];
    for (const { title, seed, panels, senders } of chosen.traces) {
      for (const { name, unit, curves } of panels) {
        for (const curve of curves) for (const [time, value] of curve.points) rows.push([title, seed, name, curve.name, unit, time, "", value]);
      }
      for (const { name, phases } of senders) for (const [phase, from, until] of phases) rows.push([title, seed, "state", name, "", from, until, phase]);
    }
    return rows.map((row) => row.map(cell).join(",") + "\n").join("");
  }
  return { made: [chosen, traces], start, csv };
};

"use strict";
// Draws what the JSON of a page of records holds. It computes nothing that a reader could take for a result.
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const HANDOVER = "handover";
  const { LIMIT, SANS, digits, tip, tooltip, legendLines, base, valueAxis, scale, sample } = drawing;

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
    const handovers = figure.handovers || [];
    // Far above the axis, which clips them.
    if (handovers.length > 0) figure.panels.forEach((_, index) => series.push({
      type: "line", name: HANDOVER, xAxisIndex: index, yAxisIndex: index, connectNulls: false, symbol: "none", silent: true, clip: true, z: 0,
      data: handovers.flatMap((time) => [[time, 0], [time, largest * 2], [time, null]]),
      lineStyle: { width: 1, type: [1, 3], color: style.soft }, emphasis: { disabled: true }, tooltip: { show: false },
    }));
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
          const near = points.filter((point) => point.seriesName !== LIMIT && point.seriesName !== HANDOVER && Math.abs(point.value[0] - time) <= Math.max(last * 0.015, 1e-3));
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

  drawing.run(new Map([
    ...data.bars.map((figure) => [figure.id, [figure, bars]]),
    ...data.lines.map((figure) => [figure.id, [figure, lines]]),
  ]));
})();

"use strict";
// Draws one figure over another, run by run. Both axes are logarithmic, and what is nothing has rows of its own.
window.midhopScatter = ({ around, titleOf }) => {
  const { SANS, legendLines, base, valueAxis, sample } = drawing;
  const { PUBLISHED, diamond, cross, legend } = signs;
  // Room for values that are something, for each row of those that are not, and beside these rows. Unit: pixels.
  const [ROOM, ROW, GAP] = [280, 11, 12];

  // Where values of an axis lie, in decades, and what it says there. `room` for the decades, and `rows` beside them
  // for what is nothing.
  function decades(values, room, rows) {
    const logs = values.filter((value) => value > 0).map(Math.log10);
    const low = logs.length ? Math.floor(Math.min(...logs)) : -1;
    const high = logs.length ? Math.max(Math.ceil(Math.max(...logs)), low + 1) : 0;
    const pixel = (high - low) / room;
    const nothing = values.some((value) => !(value > 0));
    const beside = nothing ? GAP + rows * ROW : 0;
    const row = (at) => low - (GAP + (at + 0.5) * ROW) * pixel;
    const middle = nothing ? [row((rows - 1) / 2)] : [];
    const steps = high - low <= 2 ? [1, 2, 5] : [1];
    const whole = Array.from({ length: high - low + 1 }, (_, at) => low + at);
    const labelled = [...middle, ...whole.flatMap((decade) => steps.map((step) => decade + Math.log10(step))).filter((place) => place <= high)];
    const shown = (place) => place < low ? "0" : String(Number((10 ** place).toPrecision(1)));
    return {
      beside,
      at: (value, rank) => value > 0 ? Math.log10(value) : row(rows > 1 ? rank : 0),
      axis: (style) => ({
        min: low - beside * pixel, max: high + 0.04,
        axisLabel: { color: style.soft, fontSize: 11, customValues: labelled, formatter: shown, hideOverlap: true },
        axisTick: { show: true, lineStyle: { color: style.soft }, customValues: labelled },
        splitLine: { show: true, lineStyle: { color: style.rule } },
        axisLine: { show: true, onZero: false, lineStyle: { color: style.soft } },
      }),
    };
  }

  return (figure, width, look, exported) => {
    const style = { ...look, paperOf: exported ? "#ffffff" : look.paper };
    const shown = figure.series.map((named, rank) => {
      const one = { ...named, rank };
      return { ...one, spots: one.points.flatMap((point, index) => point === null ? [] : [{ one, point, index }]) };
    });
    const spots = shown.flatMap((one) => one.spots);
    const known = spots.filter(({ point }) => point.x.value !== null && point.y.value !== null);
    const published = spots.filter(({ point }) => point.x.published !== null && point.y.published !== null);
    const there = spots.filter(({ point }) => point.x.other !== null && point.y.other !== null);
    const all = (way, of) => [
      ...known.map(({ point }) => point[way].value), ...published.map(({ point }) => point[way].published),
      ...there.map(({ point }) => point[way].other.value), ...spots.flatMap(({ point }) => point.runs.map((run) => run[of])),
    ];
    // What is nothing has a row for each configuration, so that none hides another.
    const [x, y] = [decades(all("x", 0), width - 64, 1), decades(all("y", 1), ROOM, shown.length)];
    const items = shown.map(({ name, rank }) => ({ name, icon: sample(rank, style, false), itemStyle: { borderWidth: 0 } }));
    if (published.length) items.push(legend.published(style));
    if (there.length) items.push(legend.beside(figure.beside, style));
    const top = (exported ? 34 : 4) + legendLines(items.map((it) => `${it.name}  `), width) * 24 + 26;
    const height = ROOM + y.beside;

    const means = shown.map(({ name, rank, spots: own }) => {
      const some = own.filter((spot) => known.includes(spot));
      return {
        type: "scatter", name, cursor: "pointer", z: 4, symbol: style.marker(rank), symbolSize: 12, emphasis: { disabled: true }, marks: some,
        itemStyle: { color: style.colour(rank) }, data: some.map(({ point }) => [x.at(point.x.value, rank), y.at(point.y.value, rank)]),
      };
    });
    const runs = shown.map(({ name, rank, spots: own }) => {
      const some = own.flatMap((spot) => spot.point.runs.map((run) => ({ ...spot, run })));
      return {
        type: "scatter", name, cursor: "pointer", z: 2, symbol: style.marker(rank), symbolSize: 5, emphasis: { disabled: true }, marks: some,
        itemStyle: { color: style.colour(rank), opacity: 0.55 }, data: some.map(({ run }) => [x.at(run[0], rank), y.at(run[1], rank)]),
      };
    });
    const series = [...means, ...runs.filter((one) => one.data.length > 0)];
    if (there.length) {
      series.push({
        type: "custom", name: figure.beside, z: 5, cursor: "pointer", itemStyle: { color: style.ink }, marks: there,
        data: there.map(({ one, point }) => [x.at(point.x.other.value, one.rank), y.at(point.y.other.value, one.rank)]),
        renderItem: (params, api) => {
          const { rank } = there[params.dataIndex].one;
          if (!api.currentSeriesIndices().includes(rank)) return null;
          return cross(api.coord([api.value(0), api.value(1)]), style, style.colour(rank));
        },
      });
    }
    if (published.length) {
      series.push({
        type: "custom", name: PUBLISHED, z: 6, cursor: "pointer", itemStyle: { color: style.ink }, marks: published,
        data: published.map(({ one, point }) => [x.at(point.x.published, one.rank), y.at(point.y.published, one.rank)]),
        renderItem: (params, api) => {
          const { point } = published[params.dataIndex];
          const [left, up] = api.coord([api.value(0), api.value(1)]);
          const called = point.y.called || point.x.called;
          const name = {
            type: "text", silent: true,
            style: { text: called, x: left + 8, y: up - 7, align: "left", verticalAlign: "bottom", fill: style.ink, font: `600 13px ${SANS}`, stroke: style.paperOf, lineWidth: 3 },
          };
          return { type: "group", children: [diamond([left, up], style), ...(called ? [name] : [])] };
        },
      });
    }
    const find = (params) => {
      const mark = option.series[params.seriesIndex].marks?.[params.dataIndex];
      return mark ? [titleOf(figure, mark.one, mark.index), mark.point] : null;
    };
    const option = {
      ...base(style, figure, exported, false),
      ...around(figure, style, exported, { legend: items, top, height, find }),
      xAxis: {
        type: "value", name: figure.x.axis, nameLocation: "middle", nameGap: 26, nameTextStyle: { color: style.soft, fontSize: 11 }, ...x.axis(style),
      },
      yAxis: { ...valueAxis(style, figure.y.axis), ...y.axis(style) },
      series,
    };
    return { option, find, height: top + height + 44 };
  };
};

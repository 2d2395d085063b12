"use strict";
// What every page draws with: colours and patterns, axes, tips, files, and the order in which pictures come.
const drawing = (() => {
  const darkness = window.matchMedia("(prefers-color-scheme: dark)");
  const charts = new Map();

  const INK = {
    light: { ink: "#1b1d21", soft: "#5c6068", rule: "#e3e3de", paper: "#fdfdfb", limit: "#1b1d21" },
    dark: { ink: "#e4e5e7", soft: "#a0a5ad", rule: "#30343b", paper: "#16181c", limit: "#f4f4f4" },
  };
  const LIMIT = "physical limit";
  const SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

  // Beyond as many as there are, curves have another marker and colour with a dash that is there already.
  const look = (dark) => {
    const name = dark ? "dark" : "light";
    const of = (list, step) => (i) => list[(i + Math.floor(i / list.length) * step) % list.length];
    const marker = of(styles.markers, 1);
    const pattern = of(styles.patterns, 0);
    return {
      ...INK[name],
      colour: of(styles[name], 5),
      dash: of(styles.dashes, 0),
      marker: (i) => marker(i)[0] || `path://${marker(i)[1]}`,
      mark: (i) => marker(i)[1],
      pattern: (i) => ({ ...pattern(i), rotation: (pattern(i).rotation || 0) * Math.PI / 180, color: dark ? "rgba(0,0,0,.5)" : "rgba(255,255,255,.6)" }),
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
  // An axis from zero to a round number, in three to six round steps.
  function scale(largest) {
    if (!(largest > 0)) return { max: 1, interval: 0.5 };
    const power = 10 ** Math.floor(Math.log10(largest));
    const interval = [0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5].map((step) => step * power).find((step) => largest / step <= 5.001);
    return { max: interval * Math.ceil(largest / interval - 1e-9), interval };
  }

  // A dash as in the plot with the curve's marker on it, 34 by 10; or without a dash, where nothing is joined.
  function sample(rank, style, joined = true) {
    const dash = joined ? style.dash(rank) : [0, 34];
    const steps = dash === "solid" ? [34] : dash;
    const open = style.marker(rank).startsWith("empty");
    let path = "";
    const line = (from, to) => { if (to > from) path += `M${from} 4.1h${to - from}v1.8h${from - to}z`; };
    for (let x = 0, i = 0; x < 34; x += steps[i % steps.length], i += 1) {
      if (i % 2 !== 0) continue;
      const end = Math.min(x + steps[i % steps.length], 34);
      // Through an open marker one sees no line.
      if (!open) line(x, end);
      else { line(x, Math.min(end, 13)); line(Math.max(x, 21), end); }
    }
    const mark = style.mark(rank).replace(/M([\d.]+)/g, (_, x) => `M${Number(x) + 12}`);
    // Two points at the corners keep every icon the same size.
    return `path://M0 0h.01v.01h-.01zM33.99 9.99h.01v.01h-.01z${path}${mark}`;
  }

  // Draws each figure by its maker: a function of figure, width, look and whether it is for a file, that gives
  // the chart's option and height. `after` is told of each chart that was drawn.
  function run(makers, after = () => {}) {
    function draw(holder) {
      const [figure, maker] = makers.get(holder.id);
      const plot = holder.querySelector(".plot");
      const width = plot.clientWidth;
      if (width === 0) return;
      const known = charts.get(holder.id);
      if (known && known.width === width && known.dark === darkness.matches) return;
      const made = maker(figure, width, look(darkness.matches), false);
      const { option, height } = made;
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
      after(holder, chart, made);
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
    // Whoever wants to hear of it is there once the page is read.
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", next);
    else next();

    let waiting = 0;
    window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 120); });
    darkness.addEventListener("change", drawAll);
    document.addEventListener("toggle", drawAll, true);
    document.addEventListener("click", (event) => {
      const kind = event.target.dataset?.save;
      if (kind) save(event.target.closest("figure"), kind);
    });
    // For scripts that want every picture as a file.
    window.midhopReport = { picture: (id, kind) => picture(document.getElementById(id), kind), chart: (id) => charts.get(id)?.chart };
    // Draws a picture whose figure has become another.
    const again = (id) => {
      charts.get(id)?.chart.dispose();
      charts.delete(id);
      draw(document.getElementById(id));
    };
    return { again };
  }

  return { LIMIT, SANS, look, digits, element, tip, tooltip, legendLines, base, valueAxis, scale, sample, run };
})();

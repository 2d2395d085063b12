// A chart of series over time: axes with units, a legend with values, nothing from any library.
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8, DASHES = 4;

function svg(name, attributes, text) {
  const e = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text != null) e.textContent = text;
  return e;
}

// The colour and the dashes of a series: either alone tells eight, or four, apart.
const look = at => `series c${at % COLOURS} d${(at + Math.floor(at / COLOURS)) % DASHES}`;

// A bound a little above the highest value, and ticks that people would choose: 1, 2 or 5 of a power of ten.
function ticks(most, parts) {
  const raw = Math.max(most, Number.MIN_VALUE) / parts, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(it => it * power >= raw * 0.999);
  const all = [];
  for (let at = 0; at <= Math.ceil(most / step - 1e-6); at++) all.push(at * step);
  return all;
}

class Chart {
  // `show` writes a value with its unit, `least` is the lowest upper end of the axis, `cap` its highest.
  constructor(host, { id, title, unit, show, least, cap, wide }) {
    Object.assign(this, { show, least, cap, series: [], ages: [], span: 300, at: null });
    this.figure = document.createElement("figure");
    this.figure.id = id;
    if (wide) this.figure.className = "wide";
    const caption = document.createElement("figcaption"), small = document.createElement("small");
    caption.textContent = title; small.textContent = unit; caption.append(small);
    this.legend = document.createElement("div");
    this.legend.className = "legend";
    this.svg = svg("svg", { class: "chart", role: "img", "aria-label": `${title}, ${unit}` });
    this.figure.append(caption, this.legend, this.svg);
    host.append(this.figure);
    new ResizeObserver(() => this.paint()).observe(this.svg);
    this.svg.addEventListener("pointermove", event => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.paint(); });
  }

  // `series`: name, look, values, as many as `ages`, which are seconds and fall. `bound`: a line to stay below.
  draw(ages, span, series, bound) {
    Object.assign(this, { ages, span, series, bound });
    const has = series.some(one => one.values.some(value => value != null));
    this.figure.hidden = !has;
    if (has) this.paint();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect(), { left, width } = this.room();
    const age = this.span * (1 - (event.clientX - box.left - left) / width);
    let best = null;
    this.ages.forEach((it, at) => { if (best == null || Math.abs(it - age) < Math.abs(this.ages[best] - age)) best = at; });
    this.at = best;
    this.paint();
  }

  room() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    return { left: 74, top: 8, width: Math.max(1, width - 74 - 12), height: Math.max(1, height - 8 - 22) };
  }

  paint() {
    if (!this.svg.clientWidth) return;
    const { left, top, width, height } = this.room();
    let most = Math.max(this.least, ...this.series.flatMap(one => one.values.filter(value => value != null)));
    if (this.cap) most = Math.min(this.cap, most);
    const marks = ticks(most, 4), highest = marks.at(-1);
    const x = age => left + width * (1 - age / this.span), y = value => top + height * (1 - Math.min(value, highest) / highest);
    const parts = [];
    for (const mark of marks) {
      parts.push(svg("line", { class: mark ? "grid" : "axis", x1: left, x2: left + width, y1: y(mark), y2: y(mark) }),
        svg("text", { class: "y", x: left - 6, y: y(mark) + 4 }, this.show(mark)));
    }
    const step = this.span / 5;
    for (let age = this.span; age >= 0; age -= step) {
      const place = age === this.span ? "first" : age === 0 ? "last" : "x";
      parts.push(svg("line", { class: "axis", x1: x(age), x2: x(age), y1: top + height, y2: top + height + 4 }),
        svg("text", { class: place, x: x(age), y: top + height + 17 }, age === 0 ? "now" : `−${age / 60} min`));
    }
    if (this.bound != null && this.bound <= highest)
      parts.push(svg("line", { class: "bound", x1: left, x2: left + width, y1: y(this.bound), y2: y(this.bound) }));
    for (const one of this.series) {
      let path = "", down = false;
      one.values.forEach((value, at) => {
        const age = this.ages[at];
        if (value == null || age > this.span) { down = false; return; }
        path += `${down ? "L" : "M"}${x(age).toFixed(1)} ${y(value).toFixed(1)}`;
        down = true;
      });
      if (path) parts.push(svg("path", { class: one.look, d: path }));
    }
    const at = this.at ?? this.ages.length - 1;
    if (this.at != null && this.ages[at] <= this.span)
      parts.push(svg("line", { class: "cursor", x1: x(this.ages[at]), x2: x(this.ages[at]), y1: top, y2: top + height }));
    this.svg.replaceChildren(...parts);
    const names = this.series.map(one => {
      const item = document.createElement("span"), mark = svg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" });
      mark.append(svg("line", { class: one.look, x1: 0, x2: 22, y1: 4, y2: 4 }));
      const value = document.createElement("b");
      value.textContent = this.show(one.values[at]);
      item.append(mark, one.name, value);
      return item;
    });
    if (this.at != null) names.push(document.createTextNode(`${time(this.ages[at])} ago`));
    this.legend.replaceChildren(...names);
  }
}

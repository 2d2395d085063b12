"use strict";
// What pictures of studies tell apart from bars and curves: what was published, and what the other place gave.
const signs = (() => {
  const PUBLISHED = "published";
  const DIAMOND = "path://M10 0l5.5 6l-5.5 6l-5.5 -6z";
  // The other place: a cross, which no curve and nothing published has.
  const CROSS = "M2 0L5.5 3.5L9 0L11 2L7.5 5.5L11 9L9 11L5.5 7.5L2 11L0 9L3.5 5.5L0 2z";

  const diamond = ([x, y], style) => ({
    type: "path", shape: { pathData: "M0 -6l5.5 6l-5.5 6l-5.5 -6z", x: -5.5, y: -6, width: 11, height: 12 }, x, y,
    style: { fill: style.paperOf, stroke: style.ink, lineWidth: 1.6 },
  });
  const cross = ([x, y], style, colour) => ({
    type: "path", shape: { pathData: CROSS, x: -5, y: -5, width: 10, height: 10 }, x, y,
    style: { fill: colour, stroke: style.paperOf, lineWidth: 2.4, strokeFirst: true },
  });
  const legend = {
    published: (style) => ({ name: PUBLISHED, icon: DIAMOND, itemStyle: { color: style.paperOf, borderColor: style.ink, borderWidth: 1.5 } }),
    beside: (name, style) => ({ name, icon: `path://${CROSS}`, itemStyle: { color: style.ink } }),
  };

  return { PUBLISHED, diamond, cross, legend };
})();

"use strict";
// What tells configurations apart: no two have the same colour, dash, marker or pattern, so that each of
// these alone is enough. Okabe and Ito's colours first. JSON, but for its name: tests read it.
//
// dashes: lengths of line and gap; markers: what ECharts calls it, if it has a name for it, and its path in a
// box of ten; patterns: what ECharts calls a decal, with the rotation in degrees.
const styles = {
  "light": ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#882255", "#332288", "#8a8a00", "#7f3b08", "#9a9a9a"],
  "dark": ["#4da6e0", "#f0803c", "#2fbf93", "#dd9cc2", "#f0b62e", "#93d3f7", "#c8c8c8", "#d4638f", "#9a8cf0", "#c6c650", "#c98a5a", "#8a8a8a"],
  "dashes": ["solid", [9, 4], [2, 3], [12, 3, 2, 3], [5, 2], [16, 8], [6, 2, 2, 2, 2, 2], [1, 5], [14, 3, 2, 3, 2, 3], [3, 8], [2, 2, 2, 8], [10, 6, 3, 6]],
  "markers": [
    ["circle", "M1.5 5a3.5 3.5 0 1 1 7 0a3.5 3.5 0 1 1 -7 0z"],
    ["rect", "M1.7 1.7h6.6v6.6h-6.6z"],
    ["triangle", "M5 1l4 7.4h-8z"],
    ["diamond", "M5 .8l4.2 4.2l-4.2 4.2l-4.2 -4.2z"],
    ["emptyCircle", "M1 5a4 4 0 1 1 8 0a4 4 0 1 1 -8 0zM3 5a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z"],
    ["emptyRect", "M1.2 1.2h7.6v7.6h-7.6zM3 3v4h4v-4z"],
    ["emptyTriangle", "M5 .4l5 9.2h-10zM5 4l-2 4h4z"],
    ["", "M1 1.2h8l-4 7.6z"],
    ["", "M3.6 .6h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z"],
    ["", "M1 1.2l8 7.6v-7.6l-8 7.6z"],
    ["", "M1.2 1h7.6l-7.6 8h7.6z"],
    ["", "M5 .3l1.4 3.1l3.4 .4l-2.5 2.3l.7 3.4l-3 -1.7l-3 1.7l.7 -3.4l-2.5 -2.3l3.4 -.4z"]
  ],
  "patterns": [
    { "symbol": "none" },
    { "symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [2, 5], "rotation": -45, "symbolSize": 1 },
    { "symbol": "circle", "dashArrayX": [[7, 7], [0, 7, 7, 0]], "dashArrayY": [7, 0], "symbolSize": 0.55 },
    { "symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [2, 5], "rotation": 90, "symbolSize": 1 },
    { "symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [2, 5], "rotation": 0, "symbolSize": 1 },
    { "symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [2, 5], "rotation": 45, "symbolSize": 1 },
    { "symbol": "rect", "dashArrayX": [[5, 5], [0, 5, 5, 0]], "dashArrayY": [5, 0], "symbolSize": 0.8 },
    { "symbol": "path://M0 3.8h10v2.4h-10zM3.8 0h2.4v3.8h-2.4zM3.8 6.2h2.4v3.8h-2.4z", "dashArrayX": [9, 0], "dashArrayY": [9, 0], "rotation": 45, "symbolSize": 1 },
    { "symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [6, 6], "rotation": -45, "symbolSize": 1 },
    { "symbol": "triangle", "dashArrayX": [[8, 6], [0, 7, 8, 0]], "dashArrayY": [8, 1], "symbolSize": 0.8 },
    { "symbol": "path://M0 3.8h10v2.4h-10zM3.8 0h2.4v3.8h-2.4zM3.8 6.2h2.4v3.8h-2.4z", "dashArrayX": [8, 0], "dashArrayY": [8, 0], "symbolSize": 1 },
    { "symbol": "path://M0 5a5 5 0 1 1 10 0a5 5 0 1 1 -10 0zM2.8 5a2.2 2.2 0 1 0 4.4 0a2.2 2.2 0 1 0 -4.4 0z", "dashArrayX": [9, 3], "dashArrayY": [9, 2], "symbolSize": 0.9 }
  ]
};

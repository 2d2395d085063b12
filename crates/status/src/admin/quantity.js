"use strict";
// Quantities as people read them.
const NONE = "–";

// Three digits and a unit: "1.24 Mbit/s".
function scaled(value, units) {
  let at = 0;
  while (Math.abs(value) >= 999.5 && at < units.length - 1) { value /= 1000; at++; }
  const digits = value >= 100 || at === 0 && Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits) + " " + units[at];
}

const bytes = value => value == null ? NONE : scaled(value, ["B", "kB", "MB", "GB", "TB"]);
const rate = value => value == null ? NONE : scaled(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]);
const percent = value => value == null ? NONE
  : (value * 100).toFixed(value === 0 || value >= 0.0995 ? 0 : value < 0.001 ? 2 : 1) + " %";
function count(value) { return value == null ? NONE : value.toLocaleString("en").replaceAll(",", "\u202f"); }

function time(seconds) {
  if (seconds == null) return NONE;
  if (seconds === 0) return "0 s";
  if (seconds < 0.00095) return (seconds * 1e6).toFixed(0) + " µs";
  if (seconds < 0.0995) return (seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0) + " ms";
  if (seconds < 1) return (seconds * 1000).toFixed(0) + " ms";
  if (seconds < 120) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  if (seconds < 172800) return (seconds / 3600).toFixed(1) + " h";
  return Math.round(seconds / 86400) + " days";
}

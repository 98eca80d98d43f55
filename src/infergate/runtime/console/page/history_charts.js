// Draws the charts of the History tab: bars and lines as SVG, and latencies as a heat map.

import { el, setText, svg } from "./dom.js";
import { rate, seconds } from "./statistics.js";

const HEIGHT = 100;
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

/** Return a chart with a title, a legend, the top of the scale, and a line for the cursor. */
function frame(title, legend, drawing, top) {
  const cursor = el("span", { class: "cursor", hidden: true });
  const element = el(
    "figure", { class: "chart" },
    el("figcaption", {}, el("b", {}, title), legend.map(([style, text]) => el("span", { class: `key ${style}` }, text))),
    el("div", { class: "plot" }, drawing, el("span", { class: "top" }, top), cursor),
  );
  return { element, cursor };
}

function marks(history, columns) {
  return history.events.map((event) => {
    const x = (event.time - history.start) / history.interval;
    return svg("line", { class: `mark ${event.kind}`, x1: x, x2: x, y1: 0, y2: HEIGHT, visibility: x >= 0 && x <= columns ? "visible" : "hidden" });
  });
}

/** Return a chart of bars, stacked in the order of ``series``, whose items are [style, title, values]. */
export function bars(title, history, series, format) {
  const columns = series[0][2].length;
  const totals = series[0][2].map((_, column) => sumOf(series.map(([, , values]) => values[column])));
  const max = Math.max(...totals, 1e-9);
  const heights = new Array(columns).fill(0);
  const paths = series.map(([style, , values]) => {
    let path = "";
    values.forEach((value, column) => {
      if (!value) return;
      const height = Math.max(0.6, (HEIGHT * value) / max); // a single failure stays visible
      path += `M${column + 0.04} ${HEIGHT - heights[column]}h.92v${-height}h-.92z`;
      heights[column] += height;
    });
    return svg("path", { class: `bars ${style}`, d: path });
  });
  const drawing = svg("svg", { viewBox: `0 0 ${columns} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" }, paths, marks(history, columns));
  return frame(title, series.map(([style, name]) => [style, name]), drawing, max > 1e-9 ? format(max) : "none");
}

/** Return a chart of the requests by time and latency, in which a darker cell has more requests. */
export function heatMap(title, history) {
  const { bounds, latencies } = history;
  const used = bounds.map((_, bucket) => bucket).filter((bucket) => latencies.some((column) => column[bucket]));
  const low = used.length ? Math.max(0, used[0] - 1) : 0;
  const high = used.length ? Math.min(bounds.length - 1, used.at(-1) + 1) : bounds.length - 1;
  const rows = high - low + 1;
  const canvas = el("canvas", { class: "heat", width: Math.max(latencies.length, 1), height: rows, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const max = Math.log1p(Math.max(1, ...latencies.flat()));
  context.fillStyle = getComputedStyle(document.querySelector(".skip")).color; // the accent color
  latencies.forEach((column, x) => {
    for (let bucket = low; bucket <= high; bucket += 1) {
      if (!column[bucket]) continue;
      context.globalAlpha = 0.15 + (0.85 * Math.log1p(column[bucket])) / max;
      context.fillRect(x, high - bucket, 1, 1);
    }
  });
  const chart = frame(title, [], canvas, used.length ? `up to ${boundText(bounds, high)}` : "none");
  chart.element.querySelector(".plot").append(
    svg("svg", { class: "over", viewBox: `0 0 ${latencies.length} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" }, marks(history, latencies.length)),
    el("span", { class: "bottom" }, used.length ? `from ${low ? boundText(bounds, low - 1) : "0"}` : ""));
  return chart;
}

const boundText = (bounds, bucket) => (bounds[bucket] === null ? "∞" : seconds(bounds[bucket]).replace(/\.0+(?= )/, ""));

/** Return the upper bound of the bucket that contains the quantile ``share`` of a column's latencies. */
export function columnQuantile(bounds, column, share) {
  const count = sumOf(column);
  let before = 0;
  for (const [bucket, value] of column.entries()) {
    before += value;
    if (count && before >= share * count) return boundText(bounds, bucket);
  }
  return "–";
}

/** Describe one column in a sentence. */
export function describe(history, column) {
  const at = new Date((history.start + column * history.interval) * 1000).toLocaleTimeString();
  const counts = Object.entries(history.counts).filter(([name, values]) => name !== "requests" && values[column])
    .map(([name, values]) => `${values[column]} ${TEXTS[name]}`);
  const requests = history.counts.requests[column];
  const latency = requests && history.latencies
    ? `median up to ${columnQuantile(history.bounds, history.latencies[column], 0.5)}, p99 up to ${columnQuantile(history.bounds, history.latencies[column], 0.99)}` : "";
  return [`${at}: ${rate(requests / history.interval)}`, ...counts, latency].filter(Boolean).join(" · ");
}

export const TEXTS = {
  client_errors: "client errors (4xx)", failures: "failures (5xx)", retries: "retries", hedges: "hedges",
  refusals: "refused by the queue", ejections: "ejections", failed_checks: "failed health checks",
};

export function moveCursor(charts, column, columns) {
  for (const { cursor } of charts) {
    cursor.hidden = column === null;
    if (column !== null) cursor.style.left = `${(100 * (column + 0.5)) / columns}%`;
  }
}

export function showTimes(element, history) {
  const columns = history.counts.requests.length;
  const time = (column) => new Date((history.start + column * history.interval) * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  [0, columns / 2, columns].forEach((column, index) => setText(element.children[index], time(column)));
}

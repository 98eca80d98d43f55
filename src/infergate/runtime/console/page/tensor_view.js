// Shows tensors as pictures: inputs as images or heat maps, scores as bars.

import { el } from "./dom.js";

const MAX_PIXELS = 256 * 256;
const MAX_BARS = 32;
const DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

const numbers = (tensor) => {
  const values = Array.isArray(tensor?.data) ? tensor.data.flat(Infinity) : [];
  return values.length && values.every((value) => typeof value === "number" || typeof value === "boolean") ? values.map(Number) : null;
};

/** Return the first matrix of ``tensor`` as [rows, columns, channels, at], where ``at(pixel, channel)``
 * returns a value. Return null if the tensor has no numbers, or too many or too few. */
function matrixOf(tensor) {
  const values = numbers(tensor);
  if (!values) return null;
  let shape = tensor.shape.filter((size) => size !== 1);
  let channels = 1;
  let isPlanar = false;
  if (shape.length >= 3 && shape.at(-1) === 3) {
    channels = 3;
    shape = shape.slice(0, -1);
  } else if (shape.length >= 3 && shape.at(-3) === 3) {
    channels = 3;
    isPlanar = true;
  }
  const columns = shape.at(-1) ?? 1;
  const rows = shape.length > 1 ? shape.at(-2) : 1;
  const count = rows * columns;
  if (count > MAX_PIXELS || count < 2 || values.length < count * channels) return null;
  const at = (pixel, channel) => (isPlanar ? values[channel * count + pixel] : values[pixel * channels + channel]);
  return [rows, columns, channels, at];
}

/** Return a picture of ``tensor``: an image if it has three channels, and otherwise a heat map in which
 * a darker pixel has a higher value. Return null like ``matrixOf``. */
export function picture(tensor) {
  const matrix = matrixOf(tensor);
  if (!matrix) return null;
  const [rows, columns, channels, at] = matrix;
  const canvas = el("canvas", { class: "tensor", width: columns, height: rows, role: "img", "aria-label": `${tensor.name} as ${channels === 3 ? "an image" : "a heat map"}` });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  const all = Array.from({ length: rows * columns * channels }, (_, index) => at(Math.floor(index / channels), index % channels));
  const low = all.reduce((a, b) => Math.min(a, b), Infinity);
  const high = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const scale = high > low ? 255 / (high - low) : 0;
  for (let pixel = 0; pixel < rows * columns; pixel += 1) {
    for (let channel = 0; channel < 3; channel += 1) {
      const value = (at(pixel, channels === 3 ? channel : 0) - low) * scale;
      pixels.data[4 * pixel + channel] = channels === 3 ? value : 255 - value;
    }
    pixels.data[4 * pixel + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  canvas.style.aspectRatio = `${columns} / ${Math.max(rows, columns / 16)}`;
  return el("figure", { class: "tensor-view" }, canvas,
    el("figcaption", {}, el("code", {}, `${tensor.name} ${tensor.datatype} [${tensor.shape.join(", ")}]`), ` from ${short(low)} to ${short(high)}`));
}

const short = (value) => (Number.isInteger(value) ? String(value) : value.toPrecision(3));

/** Return bars for the first row of ``tensor``, or null if the row has too many or too few numbers. */
export function scores(tensor) {
  const values = numbers(tensor);
  const count = tensor?.shape?.at(-1) ?? 0;
  if (!values || count < 2 || count > MAX_BARS || values.length < count) return null;
  const row = values.slice(0, count);
  const max = Math.max(...row.map(Math.abs), 1e-9);
  const best = row.indexOf(Math.max(...row));
  const labels = tensor.name === "SCORES" && count === 10 ? DIGITS : row.map((_, index) => String(index));
  const bar = (value, index) => {
    const fill = el("span", { class: "fill" });
    fill.style.width = `${(100 * Math.abs(value)) / max}%`;
    return el("li", { class: index === best ? "score best" : "score" }, el("span", {}, labels[index]), el("span", { class: "rail" }, fill), el("span", { class: "value" }, short(value)));
  };
  return el("figure", { class: "tensor-view" }, el("figcaption", {}, el("code", {}, `${tensor.name} ${tensor.datatype} [${tensor.shape.join(", ")}]`)), el("ol", { class: "scores" }, row.map(bar)));
}

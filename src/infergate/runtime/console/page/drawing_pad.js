// A pad to draw an input of one channel, such as a digit, with the pointer or the keyboard.

import { byId, el, setText } from "./dom.js";

export const MIN_SIZE = 4;
export const MAX_SIZE = 32;
const SEVEN = [
  [0, 0, 5, 13, 16, 16, 6, 0], [0, 0, 12, 6, 4, 13, 9, 0], [0, 0, 0, 0, 1, 15, 3, 0], [0, 0, 0, 2, 10, 13, 2, 0],
  [0, 2, 12, 16, 16, 12, 5, 0], [0, 1, 6, 9, 11, 0, 0, 0], [0, 0, 0, 15, 1, 0, 0, 0], [0, 0, 6, 11, 0, 0, 0, 0],
].flat();

export class DrawingPad {
  /** ``onChange`` is called with the pixels, row by row. A pixel has a value from 0 (paper) to ``ink``. */
  constructor(onChange) {
    this.onChange = onChange;
    this.rows = this.columns = this.ink = 0;
    this.isErasing = false;
    const pad = byId("pad");
    pad.addEventListener("pointerdown", (event) => this.begin(event));
    pad.addEventListener("pointermove", (event) => { if (event.buttons & 1) this.drawAt(event); });
    pad.addEventListener("keydown", (event) => this.onKey(event));
    byId("pad-clear").addEventListener("click", () => this.set(this.pixels.map(() => 0)));
    byId("pad-seven").addEventListener("click", () => this.set(SEVEN));
  }

  /** Set the title, and empty the pad if its size or its ink changes. Only the pad of the embedded model can draw a seven. */
  resize(rows, columns, ink, isDigit) {
    setText(byId("pad-title"), isDigit ? "Draw a digit" : `Draw the input, ${rows} × ${columns}, from 0 to ${ink}`);
    byId("pad-seven").hidden = !isDigit;
    if (rows === this.rows && columns === this.columns && ink === this.ink) return;
    Object.assign(this, { rows, columns, ink });
    this.pixels = new Array(rows * columns).fill(0);
    this.cells = this.pixels.map((_, index) => el("button", {
      type: "button", class: "pixel", tabindex: index ? -1 : 0, "aria-pressed": "false",
      "aria-label": `row ${Math.floor(index / columns) + 1}, column ${(index % columns) + 1}`,
    }));
    byId("pad").style.setProperty("--columns", columns);
    byId("pad").replaceChildren(...this.cells);
  }

  set(pixels) {
    this.pixels = pixels;
    this.cells.forEach((cell, index) => this.paint(cell, pixels[index]));
    this.onChange(pixels);
  }

  paint(cell, value) {
    cell.style.setProperty("--ink", `${(100 * value) / this.ink}%`);
    cell.setAttribute("aria-pressed", String(value > this.ink / 4));
  }

  begin(event) {
    const index = this.indexAt(event);
    if (index === null) return;
    event.preventDefault();
    this.isErasing = this.pixels[index] >= this.ink;
    this.drawAt(event);
  }

  indexAt(event) {
    const index = this.cells.indexOf(document.elementFromPoint(event.clientX, event.clientY));
    return index < 0 ? null : index;
  }

  drawAt(event) {
    const index = this.indexAt(event);
    if (index !== null) this.draw(index);
  }

  /** Ink the pixels under the pen, and their neighbors lightly, or erase the pixels. A larger pad has a
   * larger pen. */
  draw(index) {
    const { columns, ink } = this;
    const [row, column] = [Math.floor(index / columns), index % columns];
    const radius = columns / 16;
    const little = ink > 1 ? Math.round(ink / 4) : ink / 4;
    this.set(this.pixels.map((value, at) => {
      const distance = Math.hypot(Math.floor(at / columns) - row, (at % columns) - column);
      if (distance <= radius) return this.isErasing ? 0 : ink;
      return distance <= radius + 0.6 && !this.isErasing ? Math.max(value, little) : value;
    }));
  }

  onKey(event) {
    const now = this.cells.indexOf(document.activeElement);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
    if (now < 0) return;
    if (event.key === " " || event.key === "Enter") {
      this.isErasing = this.pixels[now] >= this.ink;
      this.draw(now);
    } else if (step !== undefined) {
      const next = this.cells[now + step];
      if (next) {
        this.cells[now].tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    } else return;
    event.preventDefault();
  }
}

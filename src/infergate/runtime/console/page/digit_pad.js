// A pad of 8 by 8 pixels to draw a digit for the embedded model `digits`, with the pointer or the
// keyboard.

import { byId, el } from "./dom.js";

const SIZE = 8;
const INK = 16;
const SEVEN = [
  [0, 0, 5, 13, 16, 16, 6, 0], [0, 0, 12, 6, 4, 13, 9, 0], [0, 0, 0, 0, 1, 15, 3, 0], [0, 0, 0, 2, 10, 13, 2, 0],
  [0, 2, 12, 16, 16, 12, 5, 0], [0, 1, 6, 9, 11, 0, 0, 0], [0, 0, 0, 15, 1, 0, 0, 0], [0, 0, 6, 11, 0, 0, 0, 0],
].flat();

export class DigitPad {
  /** ``onChange`` is called with the 64 pixels, from 0 (paper) to 16 (ink). */
  constructor(onChange) {
    this.pixels = new Array(SIZE * SIZE).fill(0);
    this.onChange = onChange;
    this.isErasing = false;
    this.cells = this.pixels.map((_, index) => el("button", {
      type: "button", class: "pixel", tabindex: index ? -1 : 0, "aria-pressed": "false",
      "aria-label": `row ${Math.floor(index / SIZE) + 1}, column ${(index % SIZE) + 1}`,
    }));
    const pad = byId("pad");
    pad.replaceChildren(...this.cells);
    pad.addEventListener("pointerdown", (event) => this.begin(event));
    pad.addEventListener("pointermove", (event) => { if (event.buttons & 1) this.drawAt(event); });
    pad.addEventListener("keydown", (event) => this.onKey(event));
    byId("pad-clear").addEventListener("click", () => this.set(new Array(SIZE * SIZE).fill(0)));
    byId("pad-seven").addEventListener("click", () => this.set(SEVEN));
  }

  set(pixels) {
    this.pixels = pixels.slice(0, SIZE * SIZE).map((value) => Math.min(INK, Math.max(0, Number(value) || 0)));
    this.cells.forEach((cell, index) => this.paint(cell, this.pixels[index]));
    this.onChange(this.pixels);
  }

  paint(cell, value) {
    cell.style.setProperty("--ink", `${(100 * value) / INK}%`);
    cell.setAttribute("aria-pressed", String(value > INK / 4));
  }

  begin(event) {
    const index = this.indexAt(event);
    if (index === null) return;
    event.preventDefault();
    this.isErasing = this.pixels[index] >= INK;
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

  /** Ink the pixel, and its neighbours a little, as a pen does. */
  draw(index) {
    const [row, column] = [Math.floor(index / SIZE), index % SIZE];
    const pixels = [...this.pixels];
    const ink = (r, c, value) => {
      if (r < 0 || c < 0 || r >= SIZE || c >= SIZE) return;
      const at = r * SIZE + c;
      pixels[at] = this.isErasing ? (value === INK ? 0 : pixels[at]) : Math.max(pixels[at], value);
    };
    ink(row, column, INK);
    for (const [r, c] of [[row - 1, column], [row + 1, column], [row, column - 1], [row, column + 1]]) ink(r, c, 4);
    this.set(pixels);
  }

  onKey(event) {
    const now = this.cells.indexOf(document.activeElement);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -SIZE, ArrowDown: SIZE }[event.key];
    if (now < 0) return;
    if (event.key === " " || event.key === "Enter") {
      this.isErasing = this.pixels[now] >= INK;
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

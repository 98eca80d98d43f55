// Creates elements without HTML strings, so that text from clients and files is never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const el = (tag, attributes = {}, ...children) =>
  build(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  build(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Set the text only if it differs, so that screen readers and selections are not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Fill a list with the entries that ``make`` returns, unless ``marks`` are unchanged or an entry has
 * the focus. ``make`` gets the keys of the open entries, which stay open. */
export function fillList(list, marks, make, empty) {
  if (list.dataset.marks === marks || list.contains(document.activeElement)) return;
  list.dataset.marks = marks;
  const entries = make(new Set([...list.querySelectorAll("details[open]")].map((each) => each.dataset.key)));
  list.replaceChildren(...(entries.length ? entries : [el("li", { class: "empty" }, empty)]));
}

/** The texts of the two pipelines. */
export const PIPELINES = { forward: "passed through", translate: "translated" };

/** Return the name of a protocol with its color. */
export const tag = (protocol) => el("span", { class: "tag", "data-protocol": protocol }, protocol);

/** Return the lines of a unified diff without its header. */
export const diffLines = (diff) =>
  diff.split("\n").filter((line) => !/^(---|\+\+\+) /.test(line)).map((line) => {
    const style = line.startsWith("+") ? " plus" : line.startsWith("-") ? " minus" : line.startsWith("@@") ? " hunk" : "";
    return el("span", { class: `line${style}` }, line || " ");
  });

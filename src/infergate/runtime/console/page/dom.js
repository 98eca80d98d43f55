// Elements without markup in strings: what a client or a file says is always text.

const SVG = "http://www.w3.org/2000/svg";

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

export const el = (tag, attributes = {}, ...children) =>
  made(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  made(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Change text only where it is another: screen readers and selections are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

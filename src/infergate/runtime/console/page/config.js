// The Config tab: the active configuration, how it differs from the file, and the reload button.

import { byId, diffLines, el, setText } from "./dom.js";
import { get, post } from "./api.js";

let comparison = null;
let lastRequest = 0;

/** Show a new comparison, unless a later call has been made: responses may arrive in any order. */
export async function compare() {
  const request = ++lastRequest;
  const response = await get(`config${byId("defaults").checked ? "?defaults" : ""}`);
  if (request !== lastRequest) return;
  comparison = response;
  show();
}

function show() {
  if (!comparison) return;
  setText(byId("loaded"), comparison.loaded);
  const container = byId("diff");
  if (comparison.mistakes.length) {
    container.replaceChildren(el("p", { class: "bad" }, "The file has mistakes and cannot be loaded:"),
      el("pre", { class: "code", tabindex: 0 }, comparison.mistakes.join("\n")));
  } else if (!comparison.source) {
    container.replaceChildren(el("p", { class: "muted" }, "The embedded demo has no configuration file."));
  } else if (!comparison.diff) {
    container.replaceChildren(el("p", { class: "same" }, "✓ The file matches the active configuration."));
  } else {
    container.replaceChildren(el("pre", { class: "code", tabindex: 0, "aria-label": "Differences: lines with + are in the file, lines with - in the active configuration" },
      diffLines(comparison.diff)));
  }
  byId("config-mark").hidden = !(comparison.diff || comparison.mistakes.length);
  byId("config-mark").title = "the file differs from the active configuration";
}

export function showFacts(state) {
  const { config, actions } = state;
  const last = config.last_reload;
  const rows = [
    ["File", config.source ?? "none: the embedded demo"],
    ["Active", `number ${config.number} in this run, since ${new Date(config.since).toLocaleString()}`],
    ["SHA-256", config.sha256 || "–"],
    ["Last reload", !last ? "none yet" : `${last.ok ? "succeeded" : "failed"}, ${new Date(last.when).toLocaleString()}, ${last.why}`],
    ...(last && !last.ok ? [["Reason", last.error]] : []),
  ];
  const text = JSON.stringify(rows);
  const list = byId("config-facts");
  if (list.dataset.text !== text) {
    list.dataset.text = text;
    list.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }
  const button = byId("reload");
  button.disabled = !actions.reload;
  button.title = actions.reload ? "" : "needs a configuration file, and listeners.admin.actions or reload.post";
  if (!actions.reload && !byId("reload-note").textContent) {
    setText(byId("reload-note"), "Reloading from here is disabled (listeners.admin.actions).");
  }
}

export function init() {
  byId("defaults").addEventListener("change", () => compare());
  byId("look").addEventListener("click", () => compare());
  byId("reload").addEventListener("click", async () => {
    const note = byId("reload-note");
    setText(note, "Reloading …");
    const response = await post("../reload", null);
    const last = response.json?.last_reload;
    setText(note, response.ok ? "Reloaded." : `Rejected: ${last?.error ?? response.text}`);
    await compare();
  });
}

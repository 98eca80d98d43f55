// The configuration: which one serves, how its file differs, and the button that reloads.

import { byId, el, say } from "./dom.js";
import { get, post } from "./asking.js";

let told = null;

export async function look() {
  told = await get(`config${byId("defaults").checked ? "?defaults" : ""}`);
  show();
}

function show() {
  if (!told) return;
  say(byId("loaded"), told.loaded);
  const room = byId("diff");
  if (told.mistakes.length) {
    room.replaceChildren(el("p", { class: "bad" }, "The file cannot be taken as it is:"),
      el("pre", { class: "code", tabindex: 0 }, told.mistakes.join("\n")));
  } else if (!told.source) {
    room.replaceChildren(el("p", { class: "muted" }, "The embedded demo has no file."));
  } else if (!told.diff) {
    room.replaceChildren(el("p", { class: "same" }, "✓ The file says what serves."));
  } else {
    const lines = told.diff.split("\n").filter((line) => !/^(---|\+\+\+) /.test(line));
    const look = (line) => (line.startsWith("+") ? " plus" : line.startsWith("-") ? " minus" : line.startsWith("@@") ? " hunk" : "");
    room.replaceChildren(el("pre", { class: "code", tabindex: 0, "aria-label": "Differences: lines with + are in the file, lines with - are what serves" },
      lines.map((line) => el("span", { class: `line${look(line)}` }, line || " "))));
  }
  byId("config-mark").hidden = !(told.diff || told.mistakes.length);
  byId("config-mark").title = "the file says something else than what serves";
}

export function facts(state) {
  const { config, actions } = state;
  const last = config.last_reload;
  const rows = [
    ["File", config.source ?? "none: the embedded demo"],
    ["Serves", `number ${config.number} since the start, from ${new Date(config.since).toLocaleString()}`],
    ["SHA-256", config.sha256 || "–"],
    ["Last reload", !last ? "none yet" : `${last.ok ? "worked" : "failed"}, ${new Date(last.when).toLocaleString()}, ${last.why}`],
    ...(last && !last.ok ? [["Why", last.error]] : []),
  ];
  const text = JSON.stringify(rows);
  const list = byId("config-facts");
  if (list.dataset.text !== text) {
    list.dataset.text = text;
    list.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }
  const button = byId("reload");
  button.disabled = !actions.reload;
  button.title = actions.reload ? "" : "switched on by listeners.admin.actions or reload.post, where there is a file";
  if (!actions.reload && !byId("reload-note").textContent) {
    say(byId("reload-note"), "Reloading from here is off (listeners.admin.actions).");
  }
}

export function begin() {
  byId("defaults").addEventListener("change", () => look());
  byId("look").addEventListener("click", () => look());
  byId("reload").addEventListener("click", async () => {
    const note = byId("reload-note");
    say(note, "Reloading …");
    const answer = await post("../reload", null);
    const last = answer.json?.last_reload;
    say(note, answer.ok ? "Reloaded." : `Not taken: ${last?.error ?? answer.text}`);
    await look();
  });
}

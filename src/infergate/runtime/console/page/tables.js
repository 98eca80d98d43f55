// The table of translations, and the list of errors.

import { byId, el, say } from "./dom.js";
import { ago, changes, count, lately, rate, seconds, together } from "./figures.js";

const WORDS = { forward: "forwarded", translate: "translated" };
const EMPTY = { flows: new Map() };

export function translation(plan, history) {
  const { state } = history.last;
  const spoken = plan.listeners.flatMap((each) => each.protocols);
  const rows = [...new Set([...spoken, ...state.ways.map((each) => each.protocol)])].sort();
  const columns = [...new Set([...plan.backends.map((each) => each.protocol), ...state.ways.map((each) => each.backend_protocol)])].sort();
  const whole = Math.max(1, ...state.ways.map((each) => each.count));
  const head = el("tr", {}, el("th", { scope: "col" }, "client \\ backend"), columns.map((name) => el("th", { scope: "col" }, tag(name))));
  const ever = changes(EMPTY, history.last);
  const body = rows.map((row) =>
    el("tr", {}, el("th", { scope: "row" }, tag(row)), columns.map((column) => cell(history, ever, row, column, whole))));
  byId("matrix").replaceChildren(
    el("caption", { class: "unseen" }, "Inferences by the client's protocol and the backend's"),
    el("thead", {}, head), el("tbody", {}, body),
  );
}

const tag = (protocol) => el("span", { class: "tag", "data-protocol": protocol }, protocol);

function cell(history, changed, row, column, whole) {
  const { state } = history.last;
  const ways = state.ways.filter((each) => each.protocol === row && each.backend_protocol === column);
  const all = ways.reduce((sum, each) => sum + each.count, 0);
  if (!all) return el("td", { class: "none" }, el("span", { "aria-label": "none" }, "–"));
  const wanted = (flow) => flow.protocol === row && flow.backend_protocol === column && flow.operation === "infer";
  const now = lately(history, wanted);
  const ever = together(changed, wanted);
  const own = ever.owned ? ever.own / ever.owned : null;
  const bar = el("span", { class: "share", "data-protocol": column, "aria-hidden": "true" });
  bar.style.width = `${Math.max(2, (100 * all) / whole)}%`;
  const heat = el("td", { class: "some", "data-protocol": column });
  heat.style.setProperty("--heat", `${4 + (16 * Math.log1p(all)) / Math.log1p(whole)}%`);
  heat.append(
    el("b", {}, count(all)),
    ...ways.map((each) => el("small", { class: "way", "data-way": each.way }, WORDS[each.way] + (ways.length > 1 ? ` ${count(each.count)}` : ""))),
    el("small", {}, `${rate(now.rate)} now`),
    own === null || column === "builtin" ? "" : el("small", {}, `${seconds(own)} in infergate`), bar,
  );
  return heat;
}

/** Those that are alike are one entry. What is open stays open. */
export function errors(history) {
  const { state } = history.last;
  const groups = new Map();
  for (const each of state.failures) {
    const key = JSON.stringify([each.kind, each.route, each.backend, each.error]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(each);
  }
  const badge = byId("error-count");
  const now = lately(history, () => true);
  badge.hidden = !now.errors;
  say(badge, rate(now.errors));
  badge.title = "errors a second";
  const workers = state.workers.wanted > 1 ? `, of ${state.workers.told} of ${state.workers.wanted} workers` : "";
  say(byId("errors-note"), state.failures.length
    ? `The last ${state.failures.length} requests that failed${workers}, alike ones together. By its id the log tells more of a request.`
    : "Nothing has failed.");
  const list = byId("failures");
  const open = new Set([...list.querySelectorAll("details[open]")].map((each) => each.dataset.key));
  const marks = [...groups].map(([key, each]) => `${key}${each.length}${each[0].when}`).join("\n");
  const minute = Math.floor(state.time / 10);
  if (list.dataset.marks === `${marks}${minute}` || list.contains(document.activeElement)) return;
  list.dataset.marks = `${marks}${minute}`;
  list.replaceChildren(...[...groups].map(([key, each]) => failure(key, each, open.has(key), state.time)));
  if (!groups.size) list.replaceChildren(el("li", { class: "empty" }, "No request has failed since this gateway started."));
}

function failure(key, alike, open, now) {
  const [first] = alike;
  const protocols = [...new Set(alike.map((each) => each.protocol))];
  const where = [first.route ? `route ${first.route}` : "no route", first.backend ? `backend ${first.backend}` : null];
  const rows = alike.slice(0, 20).map((each) =>
    el("tr", {}, ...[
      new Date(each.when * 1000).toLocaleTimeString(), each.request_id, each.protocol, each.operation, each.model,
      seconds(each.seconds), each.worker === null ? "" : `worker ${each.worker}`,
    ].map((text) => el("td", {}, el("code", {}, text))), el("td", { class: "wrap" }, each.detail ? el("code", {}, each.detail) : "")));
  return el(
    "li", { class: "failure" },
    el("p", { class: "first" }, el("span", { class: "kind" }, first.kind), el("b", {}, `${alike.length} ×`),
      el("span", { class: "muted" }, [...where.filter(Boolean), ago(first.when, now)].join(" · ")), protocols.map(tag)),
    first.error ? el("p", { class: "text" }, first.error) : null,
    first.meaning ? el("p", { class: "advice" }, first.meaning, " ", el("b", {}, "What to do: "), first.advice) : null,
    el("details", { "data-key": key, open }, el("summary", {}, `Requests${alike.length > 20 ? ", the last 20" : ""}`),
      el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows)))),
  );
}

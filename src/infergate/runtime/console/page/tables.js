// The Translation tab (a table of protocols) and the Errors tab.

import { byId, el, fillList, PIPELINES, setText, tag } from "./dom.js";
import { ago, changes, count, recent, rate, seconds, sumOf } from "./statistics.js";

export function translation(plan, history) {
  const { state } = history.last;
  const clientProtocols = plan.listeners.flatMap((each) => each.protocols);
  const rows = [...new Set([...clientProtocols, ...state.pipelines.map((each) => each.protocol)])].sort();
  const columns = [...new Set([...plan.backends.map((each) => each.protocol), ...state.pipelines.map((each) => each.backend_protocol)])].sort();
  const maxCount = Math.max(1, ...state.pipelines.map((each) => each.count));
  const head = el("tr", {}, el("th", { scope: "col" }, "client \\ backend"), columns.map((name) => el("th", { scope: "col" }, tag(name))));
  const sinceStart = changes(null, history.last);
  const body = rows.map((row) =>
    el("tr", {}, el("th", { scope: "row" }, tag(row)), columns.map((column) => cell(history, sinceStart, row, column, maxCount))));
  byId("matrix").replaceChildren(
    el("caption", { class: "unseen" }, "Inferences by the client's protocol and the backend's"),
    el("thead", {}, head), el("tbody", {}, body),
  );
}

function cell(history, changed, row, column, maxCount) {
  const { state } = history.last;
  const pipelines = state.pipelines.filter((each) => each.protocol === row && each.backend_protocol === column);
  const all = pipelines.reduce((sum, each) => sum + each.count, 0);
  if (!all) return el("td", { class: "none" }, el("span", { "aria-label": "none" }, "–"));
  const matches = (flow) => flow.protocol === row && flow.backend_protocol === column && flow.operation === "infer";
  const now = recent(history, matches);
  const total = sumOf(changed, matches);
  const own = total.ownCount ? total.own / total.ownCount : null;
  const bar = el("span", { class: "share", "data-protocol": column, "aria-hidden": "true" });
  bar.style.width = `${Math.max(2, (100 * all) / maxCount)}%`;
  const heat = el("td", { class: "some", "data-protocol": column });
  heat.style.setProperty("--heat", `${4 + (16 * Math.log1p(all)) / Math.log1p(maxCount)}%`);
  heat.append(
    el("b", {}, count(all)),
    ...pipelines.map((each) => el("small", { class: "pipeline", "data-pipeline": each.pipeline }, PIPELINES[each.pipeline] + (pipelines.length > 1 ? ` ${count(each.count)}` : ""))),
    el("small", {}, `${rate(now.rate)} now`),
    own === null || column === "builtin" ? "" : el("small", {}, `${seconds(own)} in infergate`), bar,
  );
  return heat;
}

/** Show the failures. Similar failures share an entry. */
export function errors(history) {
  const { state } = history.last;
  const groups = new Map();
  for (const entry of state.failures) {
    const key = JSON.stringify([entry.kind, entry.route, entry.backend, entry.error]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(entry);
  }
  const badge = byId("error-count");
  const now = recent(history, () => true);
  badge.hidden = !(now.failures || now.clientErrors);
  setText(badge, rate(now.failures + now.clientErrors));
  badge.title = "failures and client errors per second";
  const workers = state.workers.wanted > 1 ? ` on ${state.workers.reporting} of ${state.workers.wanted} workers` : "";
  setText(byId("errors-note"), state.failures.length
    ? `The last ${state.failures.length} failed requests${workers}, with similar ones grouped. Search the log for a request ID to see more.`
    : "No request has failed.");
  const marks = [...groups].map(([key, group]) => `${key}${group.length}${group[0].time}`).join("\n");
  const tenSeconds = Math.floor(state.time / 10);
  const entries = (open) => [...groups].map(([key, group]) => failure(key, group, open.has(key), state.time));
  fillList(byId("failures"), `${marks}${tenSeconds}`, entries, "No request has failed since the start.");
}

function failure(key, group, open, now) {
  const [first] = group;
  const protocols = [...new Set(group.map((each) => each.protocol))];
  const where = [first.route ? `route ${first.route}` : "no route", first.backend ? `backend ${first.backend}` : null];
  const rows = group.slice(0, 20).map((each) =>
    el("tr", {}, ...[
      new Date(each.time * 1000).toLocaleTimeString(), each.request_id, each.protocol, each.operation, each.model,
      seconds(each.seconds), each.worker === null ? "" : `worker ${each.worker}`,
    ].map((text) => el("td", {}, el("code", {}, text))), el("td", { class: "wrap" }, each.detail ? el("code", {}, each.detail) : "")));
  return el(
    "li", { class: "failure" },
    el("p", { class: "first" }, el("span", { class: "kind" }, first.kind), el("b", {}, `${group.length} ×`),
      el("span", { class: "muted" }, [...where.filter(Boolean), ago(first.time, now)].join(" · ")), protocols.map(tag)),
    first.error ? el("p", { class: "text" }, first.error) : null,
    first.meaning ? el("p", { class: "advice" }, first.meaning, " ", el("b", {}, "What to do: "), first.advice) : null,
    el("details", { "data-key": key, open }, el("summary", {}, `Requests${group.length > 20 ? ", the last 20" : ""}`),
      el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows)))),
  );
}

// The History tab: the last hour of a route, a backend, an endpoint or all traffic, the events,
// and the failed and the slowest requests. The address of the page contains the selection.

import { get } from "./api.js";
import { byId, diffLines, el, fillList, setText, tag } from "./dom.js";
import { bars, describe, heatMap, moveCursor, showTimes, TEXTS } from "./history_charts.js";
import { count, percent, rate, seconds } from "./statistics.js";

const REFRESH_MS = 3000;
const MAX_OPTIONS = 500;
/** The parameters of each kind of subject. Other parameters in an address are ignored. */
const SUBJECTS = [["route"], ["backend", "endpoint"], ["backend"]];
/** The periods in minutes. */
const PERIODS = ["5", "15", "60"];
const EVENTS = {
  start: "Start", reload: "Reload", reload_failed: "Rejected reload", drain: "Drain", worker_ended: "Worker ended",
  worker_started: "Worker restarted", worker_hung: "Worker hangs", worker_responds: "Worker responds", ejected: "Ejection", down: "Down", up: "Up",
};
const PHASES = {
  receive: "receiving the request", parse: "parsing and routing", queue: "waiting in the queue",
  connect: "connecting", backend: "backend", render: "writing the response",
};

let shown = null; // the history of the subject
let charts = [];
let plan = null;
let readAt = -Infinity;

/** The link to the history of a route, a backend or an endpoint. */
export function linkTo(subject, minutes = "15") {
  return `#history?${new URLSearchParams({ ...subject, minutes })}`;
}

function selection() {
  const [, text = ""] = location.hash.split("?");
  const all = new URLSearchParams(text);
  const names = SUBJECTS.find((each) => each.every((name) => all.has(name))) ?? [];
  const subject = Object.fromEntries(names.map((name) => [name, all.get(name)]));
  const minutes = PERIODS.includes(all.get("minutes")) ? all.get("minutes") : "15";
  return { subject, minutes, at: all.get("at") };
}

function select(changes) {
  const { subject, minutes, at } = { ...selection(), ...changes };
  const parameters = new URLSearchParams({ ...subject, minutes, ...(at ? { at } : {}) });
  window.history.replaceState(null, "", `#history?${parameters}`);
}

// ---- the choice

export function init() {
  byId("history-subject").addEventListener("change", (event) => {
    select({ subject: JSON.parse(event.target.value), at: null });
    reread();
  });
  for (const radio of document.querySelectorAll("input[name=period]")) {
    radio.addEventListener("change", () => {
      select({ minutes: radio.value });
      reread();
    });
  }
  byId("history-copy").addEventListener("click", copyLink);
  const area = byId("history-charts");
  area.addEventListener("keydown", onKey);
  area.addEventListener("click", (event) => {
    const plot = event.target.closest(".plot")?.getBoundingClientRect();
    if (plot && shown) setCursor(Math.floor((columns() * (event.clientX - plot.left)) / plot.width));
  });
}

const columns = () => shown.counts.requests.length;

async function copyLink() {
  const note = byId("history-note");
  try {
    await navigator.clipboard.writeText(location.href);
    setText(note, "Copied.");
  } catch {
    setText(note, location.href); // browsers allow copying only on secure origins
  }
}

export function showChoices(newPlan) {
  plan = newPlan;
  const { subject } = selection();
  const option = (each, text) => el("option", { value: JSON.stringify(each) }, text);
  const group = (label, options) => (options.length ? el("optgroup", { label }, options.slice(0, MAX_OPTIONS)) : null);
  const labels = [...new Set(plan.routes.map((route) => route.label))];
  byId("history-subject").replaceChildren(...[
    option({}, "all traffic"),
    group("Routes", labels.map((route) => option({ route }, route))),
    group("Backends", plan.backends.map(({ name }) => option({ backend: name }, name))),
    group("Endpoints", plan.backends.flatMap(({ name, endpoints }) => endpoints.map((endpoint) => option({ backend: name, endpoint }, `${endpoint} of ${name}`)))),
  ].filter(Boolean));
  showSelection(subject);
}

function showSelection(subject) {
  const list = byId("history-subject");
  const options = [...list.options];
  const same = (option) => {
    const each = JSON.parse(option.value);
    return ["route", "backend", "endpoint"].every((name) => each[name] === subject[name]);
  };
  const found = options.find(same);
  if (found) found.selected = true;
  else list.append(el("option", { value: JSON.stringify(subject), selected: true }, subject.endpoint ?? subject.route ?? subject.backend));
}

// ---- reading

function reread() {
  readAt = -Infinity;
  return refresh();
}

/** Read and show the history if the selection has changed or some seconds have passed. */
export async function refresh() {
  const { subject, minutes, at } = selection();
  const key = JSON.stringify([subject, minutes]);
  if (key === shown?.key && performance.now() - readAt < REFRESH_MS) return;
  readAt = performance.now();
  const read = (chosen) => get(`history?${new URLSearchParams({ ...chosen, minutes })}`);
  const [found, ...others] = await Promise.all([subject, ...related(subject)].map(read));
  if (JSON.stringify([selection().subject, selection().minutes]) !== key) return; // the selection has changed
  combine(found, subject, others);
  shown = { ...found, key };
  showSelection(subject);
  for (const radio of document.querySelectorAll("input[name=period]")) radio.checked = radio.value === minutes;
  show(subject, minutes);
  const column = at ? Math.floor((Number(at) - shown.start) / shown.interval) : null;
  setCursor(column !== null && column >= 0 && column < columns() ? column : null, { keep: true });
}

/** Return the backends whose counters complete the history: the backends of a route, for the retries,
 * and the backend of an endpoint, for the latencies. */
function related(subject) {
  if (subject.endpoint) return [{ backend: subject.backend }];
  if (!subject.route) return [];
  const routes = plan?.routes.filter((route) => route.label === subject.route) ?? [];
  const names = routes.flatMap((route) => [route.backend, route.fallback, ...route.split.map((each) => each.backend)]);
  return [...new Set(names.filter(Boolean))].slice(0, 8).map((backend) => ({ backend }));
}

function combine(found, subject, others) {
  const other = others[0];
  if (subject.endpoint) {
    Object.assign(found, { bounds: other.bounds, latencies: other.latencies });
    return;
  }
  for (const name of subject.route ? ["retries", "hedges", "refusals", "ejections"] : []) {
    found.counts[name] = found.counts[name].map((_, column) => others.reduce((sum, each) => sum + (each.counts[name][column] ?? 0), 0));
  }
}

// ---- showing

function show(subject, minutes) {
  const { counts, interval } = shown;
  const perSecond = (values) => values.map((value) => value / interval);
  const client = counts.client_errors ?? counts.requests.map(() => 0);
  const ok = counts.requests.map((value, column) => Math.max(0, value - client[column] - counts.failures[column]));
  const requests = [["ok", "succeeded", perSecond(ok)]];
  if (counts.client_errors) requests.push(["warn", "client errors (4xx)", perSecond(client)]);
  requests.push(["bad", subject.endpoint ? "failed attempts" : "failures (5xx)", perSecond(counts.failures)]);
  const others = ["retries", "hedges", "refusals", "ejections", "failed_checks"].filter((name) => counts[name]);
  const owner = subject.route ? " of its backends" : "";
  charts = [
    bars(subject.endpoint ? "Attempts per second" : "Requests per second", shown, requests, rate),
    heatMap(subject.endpoint ? `Latency of all requests to ${subject.backend}` : "Latency", shown),
    bars(`Retries and ejections${owner}, in ${interval} s`, shown, others.map((name) => [name, TEXTS[name], counts[name]]), (value) => count(value)),
  ];
  byId("history-plots").replaceChildren(...charts.map((chart) => chart.element));
  showTimes(byId("history-times"), shown);
  showSummary(subject, minutes, client);
  const silent = ({ worker, since }) => `Worker ${worker} does not respond: its counts since ${new Date(since * 1000).toLocaleTimeString()} are missing.`;
  setText(byId("history-missing"), (shown.missing ?? []).map(silent).join(" "));
  setText(byId("history-owner"), subject.endpoint ? `These are the requests to all endpoints of ${subject.backend}.` : "");
  setText(byId("history-events-title"), `What changed in the last ${minutes} minutes`);
  list("history-events", shown.events, eventItem, "Nothing changed.");
  list("history-failed", shown.failed, requestItem, "No recent request has failed.");
  list("history-slowest", shown.slowest, requestItem, "No recent request has succeeded.");
}

function showSummary(subject, minutes, client) {
  const total = (values) => values.reduce((sum, value) => sum + value, 0);
  const requests = total(shown.counts.requests);
  const failures = total(shown.counts.failures);
  const share = (value) => (value ? `${count(value)} (${percent(value / requests)})` : "no");
  const what = subject.endpoint ? "attempts" : "requests";
  const parts = [`${count(requests)} ${what} in the last ${minutes} minutes`];
  if (shown.counts.client_errors) parts.push(`${share(total(client))} client errors (4xx)`);
  parts.push(`${share(failures)} ${subject.endpoint ? "failed" : "failures (5xx)"}`);
  setText(byId("history-summary"), parts.join(" · "));
}

const list = (id, items, make, empty) =>
  fillList(byId(id), JSON.stringify(items), (open) => items.map((item) => make(item, open)), empty);

function eventItem(event, open) {
  const key = `${event.time} ${event.kind}`;
  return el(
    "li", { class: `event ${event.kind}` },
    el("p", {},
      el("button", { type: "button", class: "quiet time", title: "Show this time in the charts", onclick: () => setCursor(Math.floor((event.time - shown.start) / shown.interval)) },
        new Date(event.time * 1000).toLocaleTimeString()),
      el("b", {}, EVENTS[event.kind] ?? event.kind), " ", event.text),
    event.diff ? el("details", { "data-key": key, open: open.has(key) }, el("summary", {}, "Change of the configuration"),
      el("pre", { class: "code diff", tabindex: 0, "aria-label": "Change of the configuration" }, diffLines(event.diff.trimEnd()))) : null,
  );
}

function requestItem(request, open) {
  const key = `${request.request_id} ${request.time}`;
  const total = Math.max(request.seconds, 1e-9);
  const phases = request.phases.filter((phase) => phase.seconds > 0);
  const part = (phase) => {
    const element = el("span", { class: `phase ${phase.phase}` });
    element.style.width = `${(100 * phase.seconds) / total}%`;
    return element;
  };
  const facts = [request.route ? `route ${request.route}` : "no route", request.backend ? `backend ${request.backend}` : null,
    new Date(request.time * 1000).toLocaleTimeString(), request.worker === null ? null : `worker ${request.worker}`];
  return el(
    "li", { class: "request" },
    el("details", { "data-key": key, open: open.has(key) },
      el("summary", {}, el("b", {}, seconds(request.seconds)), request.kind === "ok" ? null : el("span", { class: "kind" }, request.kind),
        tag(request.protocol), el("span", { class: "muted" }, facts.filter(Boolean).join(" · ")),
        el("span", { class: "phases", "aria-hidden": "true" }, phases.map(part))),
      request.error ? el("p", { class: "text" }, request.error) : null,
      request.detail ? el("p", { class: "text muted" }, request.detail) : null,
      request.kind !== "ok" && request.meaning ? el("p", {}, request.meaning, " ", el("b", {}, "What to do: "), request.advice) : null,
      el("ul", { class: "times", "aria-label": "Timeline" }, request.phases.map((phase) => el("li", { class: `key ${phase.phase}` }, `${PHASES[phase.phase] ?? phase.phase} ${seconds(phase.seconds)}`))),
      request.inputs.length
        ? el("ul", { class: "times", "aria-label": "Inputs" }, request.inputs.map((each) => el("li", {}, el("code", {}, `${each.name} ${each.datatype} [${each.shape.join(", ")}]`))))
        : el("p", { class: "muted" }, "The inputs were not read."),
      el("p", { class: "muted" }, "request ID ", el("code", {}, request.request_id), ` · model ${request.model} · ${request.operation}`)),
  );
}

// ---- the cursor

function setCursor(column, { keep = false } = {}) {
  if (!shown) return;
  const at = column === null ? null : Math.min(Math.max(column, 0), columns() - 1);
  moveCursor(charts, at, columns());
  setText(byId("history-cursor"), at === null ? "Click a chart, or focus the charts and press the arrow keys, to read one interval." : describe(shown, at));
  if (!keep) select({ at: at === null ? null : String(shown.start + at * shown.interval) });
  byId("history-charts").dataset.column = at === null ? "" : String(at);
}

function onKey(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -6, PageDown: 6 };
  if (!shown) return;
  const now = byId("history-charts").dataset.column;
  if (event.key in steps) setCursor((now ? Number(now) : columns()) + steps[event.key]);
  else if (event.key === "Home") setCursor(0);
  else if (event.key === "End") setCursor(columns() - 1);
  else if (event.key === "Escape") setCursor(null);
  else return;
  event.preventDefault();
}

// The console: requests the state once a second while the page is visible, and shows it.

import { get } from "./api.js";
import * as comparison from "./comparison.js";
import * as config from "./config.js";
import { byId, el, setText, svg } from "./dom.js";
import * as demo from "./demo.js";
import * as past from "./history.js";
import { bytes, count, History, recent, percent, rate, seconds } from "./statistics.js";
import { TrafficGraph } from "./traffic_graph.js";
import { errors, translation } from "./tables.js";
import * as tryRequest from "./try_request.js";

const INTERVAL_MS = 1000;
/** If there are more routes, the configuration is compared with its file only on the Config tab. */
const MAX_ROUTES_COMPARED = 500;
const SECTIONS = ["live", "history", "translation", "comparison", "errors", "try", "config"];
const history = new History();
const tileViews = new Map();
const graph = new TrafficGraph();
let plan = null;
let section = "live";

// ---- totals

const TILES = [
  ["requests", "Requests", (now) => [now.rate, rate(now.rate)]],
  ["failures", "Failures", (now) => [now.failureShare, now.rate ? percent(now.failureShare) : "–"]],
  ["client-errors", "Client errors", (now) => [now.clientErrorShare, now.rate ? percent(now.clientErrorShare) : "–"]],
  ["p50", "Median", (now) => [now.p50, seconds(now.p50)]],
  ["p99", "99th percentile", (now) => [now.p99, seconds(now.p99)]],
  ["flight", "In flight", (now, state) => [state.totals.in_flight, count(state.totals.in_flight)]],
  ["in", "Request bytes", (now) => [now.bytesIn, `${bytes(now.bytesIn)}/s`]],
  ["out", "Response bytes", (now) => [now.bytesOut, `${bytes(now.bytesOut)}/s`]],
];

function tiles(state) {
  const now = recent(history, () => true);
  for (const [key, title, valueOf] of TILES) {
    let tile = tileViews.get(key);
    if (!tile) {
      tile = { values: [], number: el("b"), shape: svg("polyline"), ground: svg("polygon") };
      tile.element = el("li", { class: "tile" }, el("span", {}, title), tile.number,
        svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" }, tile.ground, tile.shape));
      tileViews.set(key, tile);
      byId("tiles").append(tile.element);
    }
    const [current, text] = valueOf(now, state);
    setText(tile.number, text);
    tile.values.push(current ?? 0);
    if (tile.values.length > 60) tile.values.shift();
    const max = Math.max(...tile.values, 1e-9);
    const points = tile.values.map((value, index) => `${(100 * (index + 60 - tile.values.length)) / 59},${28 - (26 * value) / max}`);
    tile.shape.setAttribute("points", points.join(" "));
    tile.ground.setAttribute("points", `${points[0].split(",")[0]},30 ${points.join(" ")} 100,30`);
    if (key === "failures") tile.element.dataset.alarm = String(now.failureShare > 0.01);
  }
}

// ---- refreshing

async function refresh() {
  const began = performance.now();
  try {
    const state = await get("state");
    if (!plan || plan.number !== state.config.number || plan.since !== state.config.since) {
      if (plan && state.config.number <= plan.number) history.clear(); // infergate was restarted
      plan = { ...(await get("plan")), number: state.config.number, since: state.config.since };
      if (plan.routes.length <= MAX_ROUTES_COMPARED || section === "config") config.compare().catch(() => {});
      tryRequest.showChoices(plan);
      past.showChoices(plan);
      byId("comparison-link").hidden = !plan.routes.some((route) => route.compared);
    }
    history.add(state);
    if (section === "comparison") await comparison.refresh();
    if (section === "history") await past.refresh();
    show(state);
    showProblem("");
  } catch (error) {
    showProblem(`The gateway does not respond: ${error.message}`);
  }
  // Large states are requested less often.
  setTimeout(refreshWhenVisible, Math.max(INTERVAL_MS, 5 * (performance.now() - began)));
}

function refreshWhenVisible() {
  if (document.visibilityState === "visible") refresh();
  else document.addEventListener("visibilitychange", refreshWhenVisible, { once: true });
}

function show(state) {
  const workers = state.workers.wanted > 1 ? ` · ${state.workers.serving} of ${state.workers.wanted} workers` : "";
  setText(byId("version"), `${state.version}${workers}`);
  const pill = byId("readiness");
  pill.dataset.health = state.ready ? "up" : "down";
  setText(pill, state.ready ? "ready" : "not ready");
  byId("key-label").hidden = !(state.actions.key && (state.actions.reload || state.actions.try));
  tiles(state);
  if (section === "live") graph.draw(plan, history);
  if (section === "translation") translation(plan, history);
  errors(history);
  config.showFacts(state);
  tryRequest.showPermission(state);
  demo.show(state);
}

function showProblem(text) {
  const box = byId("trouble");
  box.hidden = !text;
  setText(box, text);
  if (text) {
    byId("readiness").dataset.health = "down";
    setText(byId("readiness"), "no response");
  }
}

// ---- sections

function showSection() {
  const [hash] = location.hash.slice(1).split("?");
  section = SECTIONS.includes(hash) ? hash : "live";
  for (const name of SECTIONS) byId(name).hidden = name !== section;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${section}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${section === "live" ? "" : `${document.querySelector(`nav a[href="#${section}"]`).firstChild.textContent.trim()} · `}infergate console`;
  window.scrollTo(0, 0);
  if (history.states.length) show(history.last.state);
  if (section === "history" && plan) past.refresh().catch((error) => showProblem(error.message));
  if (section === "config" && plan) config.compare().catch((error) => showProblem(error.message));
}

// ---- theme

const THEMES = ["auto", "light", "dark"];

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setText(byId("theme"), `Theme: ${name}`);
}

byId("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  localStorage.setItem("infergate-theme", next);
  setTheme(next);
});
const savedTheme = localStorage.getItem("infergate-theme");
setTheme(THEMES.includes(savedTheme) ? savedTheme : "auto");

window.addEventListener("hashchange", showSection);
config.init();
tryRequest.init();
past.init();
demo.init();
showSection();
refresh();

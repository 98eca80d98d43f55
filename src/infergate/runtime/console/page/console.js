// The console: asks once a second what goes on, as long as it is seen, and shows it.

import { get } from "./asking.js";
import * as config from "./config.js";
import { byId, el, say, svg } from "./dom.js";
import { bytes, count, History, lately, percent, rate, seconds } from "./figures.js";
import { Picture } from "./picture.js";
import { errors, translation } from "./tables.js";
import * as trying from "./trying.js";

const EVERY = 1000;
/** Routes up to which the configuration is compared with its file before anybody looks at that. */
const SHORT = 500;
const SECTIONS = ["live", "translation", "errors", "try", "config"];
const history = new History();
const lines = new Map();
const picture = new Picture();
let plan = null;
let seen = "live";

// ---- totals

const TILES = [
  ["requests", "Requests", (now) => [now.rate, rate(now.rate)]],
  ["errors", "Errors", (now) => [now.share, now.rate ? percent(now.share) : "–"]],
  ["p50", "Median", (now) => [now.p50, seconds(now.p50)]],
  ["p99", "99th percentile", (now) => [now.p99, seconds(now.p99)]],
  ["flight", "In flight", (now, state) => [state.totals.in_flight, count(state.totals.in_flight)]],
  ["in", "Requests' bytes", (now) => [now.bytesIn, `${bytes(now.bytesIn)}/s`]],
  ["out", "Answers' bytes", (now) => [now.bytesOut, `${bytes(now.bytesOut)}/s`]],
];

function tiles(state) {
  const now = lately(history, () => true);
  for (const [key, title, figure] of TILES) {
    let line = lines.get(key);
    if (!line) {
      line = { values: [], number: el("b"), shape: svg("polyline"), ground: svg("polygon") };
      line.tile = el("li", { class: "tile" }, el("span", {}, title), line.number,
        svg("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" }, line.ground, line.shape));
      lines.set(key, line);
      byId("tiles").append(line.tile);
    }
    const [value, text] = figure(now, state);
    say(line.number, text);
    line.values.push(value ?? 0);
    if (line.values.length > 60) line.values.shift();
    const most = Math.max(...line.values, 1e-9);
    const points = line.values.map((each, index) => `${(100 * (index + 60 - line.values.length)) / 59},${28 - (26 * each) / most}`);
    line.shape.setAttribute("points", points.join(" "));
    line.ground.setAttribute("points", `${points[0].split(",")[0]},30 ${points.join(" ")} 100,30`);
    if (key === "errors") line.tile.dataset.alarm = String(now.share > 0.01);
  }
}

// ---- the whole

async function tick() {
  const began = performance.now();
  try {
    const state = await get("state");
    if (!plan || plan.number !== state.config.number || plan.since !== state.config.since) {
      if (plan && state.config.number <= plan.number) history.clear(); // another process
      plan = { ...(await get("plan")), number: state.config.number, since: state.config.since };
      if (plan.routes.length <= SHORT || seen === "config") config.look().catch(() => {});
      trying.models(plan);
    }
    history.add(state);
    show(state);
    trouble("");
  } catch (error) {
    trouble(`The gateway does not answer: ${error.message}`);
  }
  // A gateway with much to tell is asked less often.
  setTimeout(wait, Math.max(EVERY, 5 * (performance.now() - began)));
}

function wait() {
  if (document.visibilityState === "visible") tick();
  else document.addEventListener("visibilitychange", wait, { once: true });
}

function show(state) {
  const workers = state.workers.wanted > 1 ? ` · ${state.workers.serving} of ${state.workers.wanted} workers` : "";
  say(byId("version"), `${state.version}${workers}`);
  const pill = byId("readiness");
  pill.dataset.health = state.ready ? "up" : "down";
  say(pill, state.ready ? "ready" : "not ready");
  byId("key-label").hidden = !(state.actions.key && (state.actions.reload || state.actions.try));
  tiles(state);
  if (seen === "live") picture.draw(plan, history);
  if (seen === "translation") translation(plan, history);
  errors(history);
  config.facts(state);
  trying.allowed(state);
}

function trouble(text) {
  const box = byId("trouble");
  box.hidden = !text;
  say(box, text);
  if (text) {
    byId("readiness").dataset.health = "down";
    say(byId("readiness"), "no answer");
  }
}

// ---- parts

function turn() {
  const wanted = location.hash.slice(1);
  seen = SECTIONS.includes(wanted) ? wanted : "live";
  for (const name of SECTIONS) byId(name).hidden = name !== seen;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${seen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${seen === "live" ? "" : `${document.querySelector(`nav a[href="#${seen}"]`).firstChild.textContent.trim()} · `}infergate console`;
  window.scrollTo(0, 0);
  if (history.states.length) show(history.last.state);
  if (seen === "config" && plan) config.look().catch((error) => trouble(error.message));
}

// ---- light and dark

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  say(byId("theme"), `Theme: ${name}`);
}

byId("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  localStorage.setItem("infergate-theme", next);
  theme(next);
});
const kept = localStorage.getItem("infergate-theme");
theme(THEMES.includes(kept) ? kept : "auto");

window.addEventListener("hashchange", turn);
config.begin();
trying.begin();
turn();
tick();

// The graph of the Live tab: listeners, routes, backends, endpoints, and the traffic between them.

import { byId, el, setText, svg, tag } from "./dom.js";
import { linkTo } from "./history.js";
import { LATENCY_SECONDS, recent, percent, rate, seconds } from "./statistics.js";

const MAX_SHOWN = { routes: 14, backends: 12, endpoints: 24 };
const COLUMNS = ["listeners", "routes", "backends", "endpoints"];
const NO_ROUTE = "(no route)";
const UNHEALTHY = ["down", "ejected", "degraded", "failing"];

export class TrafficGraph {
  constructor() {
    this.filter = "";
    this.shape = "";
    this.nodes = new Map();
    this.wires = new Map();
    byId("find").addEventListener("input", (event) => {
      this.filter = event.target.value.trim().toLowerCase();
      if (this.plan) this.draw(this.plan, this.history);
    });
    this.resized = new ResizeObserver(() => this.layOut());
  }

  draw(plan, history) {
    this.plan = plan;
    this.history = history;
    const visible = this.select(plan, history);
    const shape = JSON.stringify(visible.shape);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(visible);
    }
    this.update(visible);
  }

  /** Select the part of the plan to show: the routes with problems, then the busiest of the other
   * routes, and their backends and endpoints. Each group is in the order of the configuration. */
  select(plan, history) {
    const flows = [...history.last.flows.values()];
    const busy = new Map();
    for (const flow of flows) {
      const count = busy.get(flow.route) ?? 0;
      busy.set(flow.route, count + (flow.seconds?.count ?? 0));
    }
    const problems = problemsOf(plan, history);
    const problemsFirst = (items, set, nameOf) => [...items.filter((each) => set.has(nameOf(each))), ...items.filter((each) => !set.has(nameOf(each)))];
    const matching = plan.routes.filter((route) => this.matchesRoute(plan, route));
    const ranked = problemsFirst([...matching].sort((a, b) => (busy.get(b.label) ?? 0) - (busy.get(a.label) ?? 0)), problems.routes, (route) => route.label);
    const shown = new Set(ranked.slice(0, MAX_SHOWN.routes));
    const routes = problemsFirst(matching.filter((route) => shown.has(route)), problems.routes, (route) => route.label);
    const targets = new Map();
    for (const route of routes) {
      for (const [backend, kind] of targetsOf(route)) targets.set(`${route.label} ${backend}`, [route.label, backend, kind]);
    }
    const linked = new Set([...targets.values()].map(([, backend]) => backend));
    for (const backend of plan.backends) if (this.filter && this.matchesBackend(backend)) linked.add(backend.name);
    const backends = problemsFirst(plan.backends.filter((each) => linked.has(each.name)), problems.backends, (each) => each.name).slice(0, MAX_SHOWN.backends);
    const endpoints = problemsFirst(
      backends.flatMap((each) => each.endpoints.map((url) => [each, url])), problems.endpoints, ([each, url]) => `${each.name} ${url}`,
    ).slice(0, MAX_SHOWN.endpoints);
    const listeners = plan.listeners
      .filter((each) => each.protocols.length)
      .map((each) => ({ ...each, protocols: [...each.protocols, ...each.envelopes] }));
    const unrouted = flows.some((flow) => !flow.route && flow.seconds?.count) && !this.filter;
    const entries = new Map();
    for (const flow of flows) {
      const port = portOf(listeners, plan, flow);
      if (port) entries.set(`${port} ${flow.route}`, [port, flow.route, flow.protocol]);
    }
    return {
      listeners, routes, backends, endpoints, unrouted, targets, entries,
      hidden: { routes: matching.length - routes.length, backends: linked.size - backends.length },
      shape: [
        listeners.map((each) => [each.name, each.address, each.protocols]),
        routes.map((each) => each.index), backends.map((each) => each.name), endpoints.map((each) => each[1]),
        unrouted, [...entries.keys()], plan.number,
      ],
    };
  }

  matchesRoute(plan, route) {
    if (!this.filter || route.label.toLowerCase().includes(this.filter)) return true;
    return targetsOf(route).some(([name]) => {
      const backend = plan.backends.find((each) => each.name === name);
      return backend && this.matchesBackend(backend);
    });
  }

  matchesBackend(backend) {
    return [backend.name, backend.protocol, ...backend.endpoints].some((text) => text.toLowerCase().includes(this.filter));
  }

  // ---- nodes

  build(visible) {
    this.nodes.clear();
    this.wires.clear();
    const columns = Object.fromEntries(COLUMNS.map((name) => [name, []]));
    for (const listener of visible.listeners) columns.listeners.push(this.listener(listener));
    for (const route of visible.routes) columns.routes.push(this.route(route));
    if (visible.unrouted) columns.routes.push(this.node(`route:${NO_ROUTE}`, NO_ROUTE, "requests without a route, or to the server itself"));
    for (const backend of visible.backends) columns.backends.push(this.backend(backend));
    for (const [backend, url] of visible.endpoints) {
      columns.endpoints.push(this.node(`end:${backend.name} ${url}`, url, backend.name, [], { backend: backend.name, endpoint: url }));
    }
    for (const name of ["routes", "backends"]) {
      if (visible.hidden[name] > 0) columns[name].push(el("li", { class: "more" }, `and ${visible.hidden[name]} more; use Find to show them`));
    }
    for (const name of COLUMNS) {
      const empty = el("li", { class: "more" }, name === "endpoints" ? "the models are embedded in infergate" : "no match");
      byId(`column-${name}`).replaceChildren(...(columns[name].length ? columns[name] : [empty]));
    }
    const drawing = byId("wires");
    drawing.replaceChildren();
    // A card that changes its height moves the cards below it.
    this.resized.disconnect();
    for (const each of [byId("picture"), ...document.querySelectorAll("#picture .node")]) this.resized.observe(each);
    const wire = (key, from, to, protocol, dashed) => {
      if (!this.nodes.has(from) || !this.nodes.has(to)) return;
      const track = svg("path", { class: dashed ? "idle dashed" : "idle" });
      const flow = svg("path", { class: "flow", visibility: "hidden" });
      drawing.append(svg("g", { "data-protocol": protocol, "data-from": from, "data-to": to }, track, flow));
      this.wires.set(key, { from, to, track, flow, dashed });
    };
    for (const [key, [port, route, protocol]] of visible.entries) {
      wire(`in:${key}`, `port:${port}`, `route:${route || NO_ROUTE}`, protocol, false);
    }
    for (const [key, [route, backend, kind]] of visible.targets) {
      const { protocol } = visible.backends.find((each) => each.name === backend) ?? {};
      wire(`to:${key}`, `route:${route}`, `back:${backend}`, protocol, kind !== "all");
    }
    for (const [backend, url] of visible.endpoints) {
      wire(`at:${backend.name} ${url}`, `back:${backend.name}`, `end:${backend.name} ${url}`, backend.protocol, false);
    }
    this.layOut();
  }

  node(key, name, sub, extra = [], subject = null) {
    const nums = el("p", { class: "nums" });
    const state = el("span", { class: "unseen" });
    const label = el("code", { title: name }, name);
    const element = el(
      "li", { class: "node", "data-busy": "false", "data-key": key },
      el("p", { class: "name" }, el("span", { class: "dot", "aria-hidden": "true" }), subject ? el("a", { href: linkTo(subject), title: `History of ${name}` }, label) : label, state),
      sub ? el("p", { class: "sub" }, sub) : null, extra, nums,
    );
    this.nodes.set(key, { element, nums, state });
    return element;
  }

  listener(listener) {
    const properties = [listener.tls ? "TLS" : null, listener.model ? `model ${listener.model}` : null, listener.framed ? "size-prefixed" : null];
    const ports = listener.protocols.map((protocol) => {
      const number = el("b", {}, "");
      const key = `port:${listener.name} ${protocol}`;
      const element = el("p", { class: "port", "data-protocol": protocol, "data-busy": "false", "data-key": key }, el("code", {}, protocol), number);
      this.nodes.set(key, { element, number });
      return element;
    });
    const address = el("p", { class: "sub" }, [listener.address, ...properties.filter(Boolean)].join(" · "));
    const connections = el("p", { class: "sub" });
    this.nodes.set(`listener:${listener.name}`, { connections });
    return el("li", { class: "node" }, el("p", { class: "name" }, el("code", {}, listener.name)), address, ports, connections);
  }

  route(route) {
    const notes = [];
    if (route.headers.length) notes.push(`with ${route.headers.join(", ")}`);
    notes.push(...route.split.map((target) => `${target.percent}% to ${target.backend}`));
    if (route.fallback) notes.push(`fallback ${route.fallback}`);
    if (route.mirror) notes.push(`mirror ${route.mirror}`);
    if (route.rewrites.length) notes.push(route.rewrites.length > 2 ? `${route.rewrites.length} rewrites` : route.rewrites.join(", "));
    const to = el("p", { class: "sub to" }, `to ${route.backend}`);
    return this.node(`route:${route.label}`, route.label, notes.join(" · "), [to], { route: route.label });
  }

  backend(backend) {
    const protocol = el("p", { class: "sub" }, tag(backend.protocol));
    return this.node(`back:${backend.name}`, backend.name, "", [protocol], { backend: backend.name });
  }

  // ---- statistics

  update(visible) {
    const { history } = this;
    const state = history.last.state;
    const connections = new Map(state.listeners.map((each) => [each.listener, each.connections]));
    for (const listener of visible.listeners) {
      const node = this.nodes.get(`listener:${listener.name}`);
      if (node) setText(node.connections, `${connections.get(listener.name) ?? 0} connections`);
      for (const protocol of listener.protocols) {
        const port = `${listener.name} ${protocol}`;
        const now = recent(history, (flow) => portOf(visible.listeners, this.plan, flow) === port);
        const entry = this.nodes.get(`port:${port}`);
        entry.element.dataset.busy = String(now.rate > 0);
        setText(entry.number, now.rate ? rate(now.rate) : "idle");
      }
    }
    for (const [key, [port, route]] of visible.entries) {
      this.flow(`in:${key}`, recent(history, (flow) => flow.route === route && portOf(visible.listeners, this.plan, flow) === port));
    }
    for (const route of visible.routes) this.showStatistics(`route:${route.label}`, recent(history, (flow) => flow.route === route.label));
    if (visible.unrouted) this.showStatistics(`route:${NO_ROUTE}`, recent(history, (flow) => !flow.route));
    for (const [key, [route, backend]] of visible.targets) {
      this.flow(`to:${key}`, recent(history, (flow) => flow.route === route && flow.backend === backend));
    }
    const health = new Map(state.endpoints.map((each) => [`${each.backend} ${each.endpoint}`, each]));
    const counters = new Map(state.backends.map((each) => [each.backend, each]));
    for (const backend of visible.backends) {
      const healths = backend.endpoints.map((url) => health.get(`${backend.name} ${url}`)?.health ?? "unknown");
      const waiting = counters.get(backend.name)?.waiting ?? 0;
      this.showStatistics(`back:${backend.name}`, recent(history, (flow) => flow.backend === backend.name), combinedHealth(healths), waiting ? `${waiting} waiting` : "");
    }
    for (const [backend, url] of visible.endpoints) this.endpoint(`${backend.name} ${url}`, health);
  }

  endpoint(key, health) {
    const { last } = this.history;
    const from = this.history.before(5);
    const [now, old] = [last.endpoints.get(key), from.endpoints.get(key)];
    const span = last.time - from.time;
    const perSecond = (outcome) => (span > 0 ? Math.max(0, (now?.requests?.[outcome] ?? 0) - (old?.requests?.[outcome] ?? 0)) / span : 0);
    const [ok, failed] = [perSecond("ok"), perSecond("failed")];
    const statistics = {
      rate: ok + failed, failures: failed, failureShare: failed ? failed / (ok + failed) : 0, clientErrors: 0, p50: null, p99: null,
    };
    const status = health.get(key)?.health ?? "unknown";
    this.showStatistics(`end:${key}`, statistics, status, now?.active ? `${now.active} in flight` : "");
    this.flow(`at:${key}`, statistics);
  }

  showStatistics(key, now, health = "", note = "") {
    const node = this.nodes.get(key);
    if (!node) return;
    const failing = now.failureShare > 0.5;
    const status = failing && (health === "" || health === "up" || health === "unknown") ? "failing" : health || (now.rate ? "up" : "");
    node.element.dataset.busy = String(now.rate > 0);
    node.element.dataset.health = status;
    setText(node.state, status);
    const items = [[now.rate ? rate(now.rate) : "idle", "b"]];
    if (now.p50 !== null) items.push([`p50 ${seconds(now.p50)}`], [`p99 ${seconds(now.p99)}`]);
    if (note) items.push([note]);
    if (now.failures && health !== "failing") items.push([`${percent(now.failureShare)} failures`, "span", "bad"]);
    if (now.clientErrors) items.push([`${percent(now.clientErrorShare)} client errors`]);
    if (UNHEALTHY.includes(health)) items.push([health, "span", health === "degraded" ? "" : "bad"]);
    const text = JSON.stringify(items);
    if (node.text === text) return;
    node.text = text;
    node.nums.replaceChildren(...items.map(([text, tag = "span", style = ""]) => el(tag, style ? { class: style } : {}, text)));
  }

  flow(key, now) {
    const wire = this.wires.get(key);
    if (!wire) return;
    const busy = now.rate > 0;
    const width = busy ? 2 + 2.2 * Math.log10(1 + now.rate) : 1.5;
    const failing = now.failureShare > 0.5 ? " failing" : "";
    wire.track.setAttribute("class", `${busy ? "track" : "idle"}${wire.dashed && !busy ? " dashed" : ""}${failing}`);
    wire.track.style.strokeWidth = `${width + (busy ? 3 : 0)}px`;
    wire.flow.setAttribute("class", `flow${failing}`);
    wire.flow.setAttribute("visibility", busy ? "visible" : "hidden");
    wire.flow.style.strokeWidth = `${width}px`;
    // A new duration makes the dots jump, so change it only if it differs much.
    const duration = Math.min(2.4, Math.max(0.35, 1.6 / Math.log2(2 + now.rate)));
    if (Math.abs(duration - (wire.duration ?? 0)) > 0.25) {
      wire.duration = duration;
      wire.flow.style.animationDuration = `${duration}s`;
    }
  }

  // ---- layout

  layOut() {
    const origin = byId("wires").getBoundingClientRect();
    if (!origin.width) return;
    const boxes = new Map();
    const box = (node) => {
      if (!boxes.has(node)) boxes.set(node, this.nodes.get(node).element.getBoundingClientRect());
      return boxes.get(node);
    };
    // At each side of a node, order the wires by the position of their other ends.
    const ends = new Map();
    for (const wire of this.wires.values()) {
      for (const [node, side, other] of [[wire.from, "right", wire.to], [wire.to, "left", wire.from]]) {
        const key = `${node} ${side}`;
        if (!ends.has(key)) ends.set(key, []);
        ends.get(key).push([box(other).top, wire]);
      }
    }
    for (const wires of ends.values()) wires.sort((a, b) => a[0] - b[0]);
    const position = (node, side, wire) => {
      const [rect, wires] = [box(node), ends.get(`${node} ${side}`)];
      const index = wires.findIndex((end) => end[1] === wire);
      const gap = Math.min(9, (rect.height - 10) / wires.length);
      const y = rect.top + rect.height / 2 + (index - (wires.length - 1) / 2) * gap - origin.top;
      return [rect[side] - origin.left + (side === "right" ? 3 : -3), y];
    };
    for (const wire of this.wires.values()) {
      const [x1, y1] = position(wire.from, "right", wire);
      const [x2, y2] = position(wire.to, "left", wire);
      const bend = (x2 - x1) * 0.5;
      const d = `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
      wire.track.setAttribute("d", d);
      wire.flow.setAttribute("d", d);
    }
  }
}

/** Return the backends of a route, each with its kind. */
function targetsOf(route) {
  const targets = [[route.backend, "all"]];
  for (const target of route.split) if (target.backend !== route.backend) targets.push([target.backend, "split"]);
  if (route.fallback) targets.push([route.fallback, "fallback"]);
  if (route.mirror) targets.push([route.mirror, "mirror"]);
  return targets;
}

/** Return the routes, backends and endpoints with a recent failure or an unhealthy endpoint. */
function problemsOf(plan, history) {
  const failed = history.changed(LATENCY_SECONDS).filter((change) => change.failures);
  const unhealthy = history.last.state.endpoints.filter((each) => UNHEALTHY.includes(each.health));
  const backends = new Set([...failed.map(({ flow }) => flow.backend), ...unhealthy.map((each) => each.backend)]);
  const routes = new Set(failed.map(({ flow }) => flow.route));
  for (const route of plan.routes) if (targetsOf(route).some(([backend]) => backends.has(backend))) routes.add(route.label);
  return { routes, backends, endpoints: new Set(unhealthy.map((each) => `${each.backend} ${each.endpoint}`)) };
}

/** Return the port of a flow, as the names of a listener and a protocol. The listener is the model's
 * own listener, or else a shared listener. */
function portOf(listeners, plan, flow) {
  const candidates = listeners.filter((listener) => listener.protocols.includes(flow.protocol));
  const own = candidates.find((listener) => listener.model && listener.model === flow.route);
  const found = own ?? candidates.find((listener) => !listener.model) ?? candidates[0];
  return found ? `${found.name} ${flow.protocol}` : "";
}

function combinedHealth(healths) {
  if (!healths.length) return "";
  if (healths.every((health) => health === healths[0])) return healths[0];
  return healths.some((health) => UNHEALTHY.includes(health)) ? "degraded" : "up";
}

// The live picture: listeners, routes, backends, endpoints, and what flows between them.

import { byId, el, say, svg } from "./dom.js";
import { lately, percent, rate, seconds } from "./figures.js";

const MOST = { routes: 14, backends: 12, endpoints: 24 };
const COLUMNS = ["listeners", "routes", "backends", "endpoints"];
const NOWHERE = "(no route)";

export class Picture {
  constructor() {
    this.filter = "";
    this.shape = "";
    this.nodes = new Map();
    this.wires = new Map();
    byId("find").addEventListener("input", (event) => {
      this.filter = event.target.value.trim().toLowerCase();
      if (this.plan) this.draw(this.plan, this.history);
    });
    new ResizeObserver(() => this.lay()).observe(byId("picture"));
  }

  draw(plan, history) {
    this.plan = plan;
    this.history = history;
    const seen = this.seen(plan, history);
    const shape = JSON.stringify(seen.shape);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(seen);
    }
    this.update(seen);
  }

  /** What of the plan is shown: what is asked most goes first, where it is too much. */
  seen(plan, history) {
    const flows = [...history.last.flows.values()];
    const busy = new Map();
    for (const flow of flows) {
      const was = busy.get(flow.route) ?? 0;
      busy.set(flow.route, was + (flow.seconds?.count ?? 0));
    }
    const fits = (route) => this.fits(plan, route);
    const wanted = plan.routes.filter(fits);
    const first = [...wanted].sort((a, b) => (busy.get(b.label) ?? 0) - (busy.get(a.label) ?? 0)).slice(0, MOST.routes);
    const routes = wanted.filter((route) => first.includes(route));
    const targets = new Map();
    for (const route of routes) {
      for (const [backend, how] of ways(route)) targets.set(`${route.label} ${backend}`, [route.label, backend, how]);
    }
    const linked = new Set([...targets.values()].map(([, backend]) => backend));
    for (const backend of plan.backends) if (this.filter && this.hits(backend)) linked.add(backend.name);
    const backends = plan.backends.filter((each) => linked.has(each.name)).slice(0, MOST.backends);
    const endpoints = backends.flatMap((each) => each.endpoints.map((url) => [each, url])).slice(0, MOST.endpoints);
    const listeners = plan.listeners.filter((each) => each.protocols.length);
    const unrouted = flows.some((flow) => !flow.route && flow.seconds?.count) && !this.filter;
    const entries = new Map();
    for (const flow of flows) {
      const port = portOf(listeners, plan, flow);
      if (port) entries.set(`${port} ${flow.route}`, [port, flow.route, flow.protocol]);
    }
    return {
      listeners, routes, backends, endpoints, unrouted, targets, entries,
      hidden: { routes: wanted.length - routes.length, backends: linked.size - backends.length },
      shape: [
        listeners.map((each) => [each.name, each.address, each.protocols]),
        routes.map((each) => each.index), backends.map((each) => each.name), endpoints.map((each) => each[1]),
        unrouted, [...entries.keys()], plan.number,
      ],
    };
  }

  fits(plan, route) {
    if (!this.filter || route.label.toLowerCase().includes(this.filter)) return true;
    return ways(route).some(([name]) => {
      const backend = plan.backends.find((each) => each.name === name);
      return backend && this.hits(backend);
    });
  }

  hits(backend) {
    return [backend.name, backend.protocol, ...backend.endpoints].some((text) => text.toLowerCase().includes(this.filter));
  }

  // ---- nodes

  build(seen) {
    this.nodes.clear();
    this.wires.clear();
    const columns = Object.fromEntries(COLUMNS.map((name) => [name, []]));
    for (const listener of seen.listeners) columns.listeners.push(this.listener(listener));
    for (const route of seen.routes) columns.routes.push(this.route(route));
    if (seen.unrouted) columns.routes.push(this.node(`route:${NOWHERE}`, NOWHERE, "requests that no route took, or of the server"));
    for (const backend of seen.backends) columns.backends.push(this.backend(backend));
    for (const [backend, url] of seen.endpoints) {
      columns.endpoints.push(this.node(`end:${backend.name} ${url}`, url, backend.name));
    }
    for (const name of ["routes", "backends"]) {
      if (seen.hidden[name] > 0) columns[name].push(el("li", { class: "more" }, `and ${seen.hidden[name]} more: find them by name`));
    }
    for (const name of COLUMNS) {
      const nothing = el("li", { class: "more" }, name === "endpoints" ? "the models run inside infergate" : "nothing fits");
      byId(`column-${name}`).replaceChildren(...(columns[name].length ? columns[name] : [nothing]));
    }
    const drawing = byId("wires");
    drawing.replaceChildren();
    const wire = (key, from, to, protocol, dashed) => {
      if (!this.nodes.has(from) || !this.nodes.has(to)) return;
      const track = svg("path", { class: dashed ? "idle dashed" : "idle" });
      const flow = svg("path", { class: "flow", visibility: "hidden" });
      drawing.append(svg("g", { "data-protocol": protocol }, track, flow));
      this.wires.set(key, { from, to, track, flow, dashed });
    };
    for (const [key, [port, route, protocol]] of seen.entries) {
      wire(`in:${key}`, `port:${port}`, `route:${route || NOWHERE}`, protocol, false);
    }
    for (const [key, [route, backend, how]] of seen.targets) {
      const { protocol } = seen.backends.find((each) => each.name === backend) ?? {};
      wire(`to:${key}`, `route:${route}`, `back:${backend}`, protocol, how !== "all");
    }
    for (const [backend, url] of seen.endpoints) {
      wire(`at:${backend.name} ${url}`, `back:${backend.name}`, `end:${backend.name} ${url}`, backend.protocol, false);
    }
    this.lay();
  }

  node(key, name, sub, extra = []) {
    const nums = el("p", { class: "nums" });
    const state = el("span", { class: "unseen" });
    const element = el(
      "li", { class: "node", "data-busy": "false" },
      el("p", { class: "name" }, el("span", { class: "dot", "aria-hidden": "true" }), el("code", { title: name }, name), state),
      sub ? el("p", { class: "sub" }, sub) : null, extra, nums,
    );
    this.nodes.set(key, { element, nums, state });
    return element;
  }

  listener(listener) {
    const what = [listener.tls ? "TLS" : null, listener.model ? `model ${listener.model}` : null, listener.framed ? "frames" : null];
    const ports = listener.protocols.map((protocol) => {
      const number = el("b", {}, "");
      const element = el("p", { class: "port", "data-protocol": protocol, "data-busy": "false" }, el("code", {}, protocol), number);
      this.nodes.set(`port:${listener.name} ${protocol}`, { element, number });
      return element;
    });
    const told = el("p", { class: "sub" }, [listener.address, ...what.filter(Boolean)].join(" · "));
    const connections = el("p", { class: "sub" });
    this.nodes.set(`listener:${listener.name}`, { connections });
    return el("li", { class: "node" }, el("p", { class: "name" }, el("code", {}, listener.name)), told, ports, connections);
  }

  route(route) {
    const told = [];
    if (route.headers.length) told.push(`with ${route.headers.join(", ")}`);
    told.push(...route.split.map((each) => `${each.percent}% to ${each.backend}`));
    if (route.fallback) told.push(`else ${route.fallback}`);
    if (route.mirror) told.push(`copies to ${route.mirror}`);
    if (route.rewrites.length) told.push(route.rewrites.length > 2 ? `${route.rewrites.length} rewrites` : route.rewrites.join(", "));
    const to = el("p", { class: "sub to" }, `to ${route.backend}`);
    return this.node(`route:${route.label}`, route.label, told.join(" · "), [to]);
  }

  backend(backend) {
    const tag = el("p", { class: "sub" }, el("span", { class: "tag", "data-protocol": backend.protocol }, backend.protocol));
    return this.node(`back:${backend.name}`, backend.name, "", [tag]);
  }

  // ---- figures

  update(seen) {
    const { history } = this;
    const state = history.last.state;
    const open = new Map(state.listeners.map((each) => [each.listener, each.connections]));
    for (const listener of seen.listeners) {
      const node = this.nodes.get(`listener:${listener.name}`);
      if (node) say(node.connections, `${open.get(listener.name) ?? 0} connections`);
      for (const protocol of listener.protocols) {
        const port = `${listener.name} ${protocol}`;
        const now = lately(history, (flow) => portOf(seen.listeners, this.plan, flow) === port);
        const entry = this.nodes.get(`port:${port}`);
        entry.element.dataset.busy = String(now.rate > 0);
        say(entry.number, now.rate ? rate(now.rate) : "idle");
      }
    }
    for (const [key, [port, route]] of seen.entries) {
      this.flow(`in:${key}`, lately(history, (flow) => flow.route === route && portOf(seen.listeners, this.plan, flow) === port));
    }
    for (const route of seen.routes) this.tell(`route:${route.label}`, lately(history, (flow) => flow.route === route.label));
    if (seen.unrouted) this.tell(`route:${NOWHERE}`, lately(history, (flow) => !flow.route));
    for (const [key, [route, backend]] of seen.targets) {
      this.flow(`to:${key}`, lately(history, (flow) => flow.route === route && flow.backend === backend));
    }
    const health = new Map(state.endpoints.map((each) => [`${each.backend} ${each.endpoint}`, each]));
    const tallies = new Map(state.backends.map((each) => [each.backend, each]));
    for (const backend of seen.backends) {
      const words = backend.endpoints.map((url) => health.get(`${backend.name} ${url}`)?.health ?? "unknown");
      const waiting = tallies.get(backend.name)?.waiting ?? 0;
      this.tell(`back:${backend.name}`, lately(history, (flow) => flow.backend === backend.name), together(words), waiting ? `${waiting} waiting` : "");
    }
    for (const [backend, url] of seen.endpoints) this.endpoint(`${backend.name} ${url}`, health);
  }

  endpoint(key, health) {
    const { last } = this.history;
    const from = this.history.before(5);
    const [now, old] = [last.endpoints.get(key), from.endpoints.get(key)];
    const span = last.time - from.time;
    const more = (what) => (span > 0 ? Math.max(0, (now?.requests?.[what] ?? 0) - (old?.requests?.[what] ?? 0)) / span : 0);
    const [ok, failed] = [more("ok"), more("failed")];
    const figures = { rate: ok + failed, errors: failed, share: failed ? failed / (ok + failed) : 0, p50: null, p99: null };
    const word = health.get(key)?.health ?? "unknown";
    this.tell(`end:${key}`, figures, word, now?.active ? `${now.active} under way` : "");
    this.flow(`at:${key}`, figures);
  }

  tell(key, now, health = "", more = "") {
    const node = this.nodes.get(key);
    if (!node) return;
    const failing = now.share > 0.5;
    const word = failing && (health === "" || health === "up" || health === "unknown") ? "failing" : health || (now.rate ? "up" : "");
    node.element.dataset.busy = String(now.rate > 0);
    node.element.dataset.health = word;
    say(node.state, word);
    const told = [[now.rate ? rate(now.rate) : "idle", "b"]];
    if (now.p50 !== null) told.push([`p50 ${seconds(now.p50)}`], [`p99 ${seconds(now.p99)}`]);
    if (more) told.push([more]);
    if (now.errors && health !== "failing") told.push([`${percent(now.share)} errors`, "span", "bad"]);
    if (["down", "ejected", "partly", "failing"].includes(health)) told.push([health, "span", health === "partly" ? "" : "bad"]);
    const text = JSON.stringify(told);
    if (node.text === text) return;
    node.text = text;
    node.nums.replaceChildren(...told.map(([what, tag = "span", look = ""]) => el(tag, look ? { class: look } : {}, what)));
  }

  flow(key, now) {
    const wire = this.wires.get(key);
    if (!wire) return;
    const busy = now.rate > 0;
    const width = busy ? 2 + 2.2 * Math.log10(1 + now.rate) : 1.5;
    const failing = now.share > 0.5 ? " failing" : "";
    wire.track.setAttribute("class", `${busy ? "track" : "idle"}${wire.dashed && !busy ? " dashed" : ""}${failing}`);
    wire.track.style.strokeWidth = `${width + (busy ? 3 : 0)}px`;
    wire.flow.setAttribute("class", `flow${failing}`);
    wire.flow.setAttribute("visibility", busy ? "visible" : "hidden");
    wire.flow.style.strokeWidth = `${width}px`;
    // A new duration lets the dots jump: only where it is much another.
    const duration = Math.min(2.4, Math.max(0.35, 1.6 / Math.log2(2 + now.rate)));
    if (Math.abs(duration - (wire.duration ?? 0)) > 0.25) {
      wire.duration = duration;
      wire.flow.style.animationDuration = `${duration}s`;
    }
  }

  // ---- where wires are

  lay() {
    const origin = byId("wires").getBoundingClientRect();
    if (!origin.width) return;
    const boxes = new Map();
    const box = (node) => {
      if (!boxes.has(node)) boxes.set(node, this.nodes.get(node).element.getBoundingClientRect());
      return boxes.get(node);
    };
    // At each end of a node, wires are in the order of where they come from or go to.
    const ends = new Map();
    for (const wire of this.wires.values()) {
      for (const [node, side, other] of [[wire.from, "right", wire.to], [wire.to, "left", wire.from]]) {
        const key = `${node} ${side}`;
        if (!ends.has(key)) ends.set(key, []);
        ends.get(key).push([box(other).top, wire]);
      }
    }
    for (const all of ends.values()) all.sort((one, other) => one[0] - other[0]);
    const place = (node, side, wire) => {
      const [at, all] = [box(node), ends.get(`${node} ${side}`)];
      const index = all.findIndex((each) => each[1] === wire);
      const gap = Math.min(9, (at.height - 10) / all.length);
      const y = at.top + at.height / 2 + (index - (all.length - 1) / 2) * gap - origin.top;
      return [at[side] - origin.left + (side === "right" ? 3 : -3), y];
    };
    for (const wire of this.wires.values()) {
      const [x1, y1] = place(wire.from, "right", wire);
      const [x2, y2] = place(wire.to, "left", wire);
      const bend = (x2 - x1) * 0.5;
      const d = `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
      wire.track.setAttribute("d", d);
      wire.flow.setAttribute("d", d);
    }
  }
}

/** Where a route sends inferences: backend, and how. */
function ways(route) {
  const told = [[route.backend, "all"]];
  for (const each of route.split) if (each.backend !== route.backend) told.push([each.backend, "split"]);
  if (route.fallback) told.push([route.fallback, "fallback"]);
  if (route.mirror) told.push([route.mirror, "mirror"]);
  return told;
}

/** The listener that a flow came by, as far as its protocol tells: that of the model's own, where
 * there is one, else the shared one. gRPC's own services belong to whichever has gRPC. */
function portOf(listeners, plan, flow) {
  const speaking = listeners.filter((each) => each.protocols.includes(flow.protocol));
  const own = speaking.find((each) => each.model && each.model === flow.route);
  const found = own ?? speaking.find((each) => !each.model) ?? speaking[0];
  return found ? `${found.name} ${flow.protocol}` : "";
}

function together(words) {
  if (!words.length) return "";
  if (words.every((word) => word === words[0])) return words[0];
  return words.some((word) => ["down", "ejected", "partly", "failing"].includes(word)) ? "partly" : "up";
}

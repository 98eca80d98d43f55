// Computes recent rates and latencies from the states, whose counters count since the start. This
// module has no I/O.

/** The periods, in seconds, that rates and latencies cover. */
export const RATE_SECONDS = 5;
export const LATENCY_SECONDS = 20;
const MAX_STATES = 90;

export const keyOf = (flow) =>
  JSON.stringify([flow.route, flow.protocol, flow.backend, flow.backend_protocol, flow.operation]);

const total = (outcomes = {}) => Object.values(outcomes).reduce((sum, count) => sum + count, 0);

/** The last states of the gateway. It must be cleared after the gateway was restarted. */
export class History {
  constructor() {
    this.states = [];
    this.cache = new Map();
  }

  add(state) {
    if (this.states.length && state.time < this.last.time) this.clear(); // the clock was set back
    const flows = new Map(state.flows.map((flow) => [keyOf(flow), flow]));
    const endpoints = new Map(state.endpoints.map((endpoint) => [`${endpoint.backend} ${endpoint.endpoint}`, endpoint]));
    this.states.push({ time: state.time, flows, endpoints, state });
    if (this.states.length > MAX_STATES) this.states.shift();
    this.cache.clear();
  }

  clear() {
    this.states = [];
    this.cache.clear();
  }

  get last() {
    return this.states.at(-1);
  }

  /** Return the state of ``seconds`` ago, or the oldest state. If a worker did not respond, only
   * states of the same number of workers are compared: otherwise, the sums would seem to fall or rise. */
  before(seconds) {
    const from = this.last.time - seconds - 0.5;
    return this.states.find((each) => each.time >= from && comparable(each.state.workers, this.last.state.workers));
  }

  /** Return the changes in the last ``seconds``, cached until the next state. */
  changed(seconds) {
    if (!this.cache.has(seconds)) this.cache.set(seconds, changes(this.before(seconds), this.last));
    return this.cache.get(seconds);
  }
}

const isComplete = (workers) => workers.reporting >= workers.serving;
const comparable = (before, after) =>
  (isComplete(before) && isComplete(after)) || (before.reporting === after.reporting && before.serving === after.serving);

const EMPTY_FLOW = { outcomes: {}, seconds: { sum: 0, count: 0, buckets: [] }, bytes_in: 0, bytes_out: 0 };
const increase = (now, before) => Math.max(0, (now ?? 0) - (before ?? 0));

/** Return the increase of each flow's counters between two states, or since the start if ``from`` is
 * null, for flows with new requests. A counter that drops, because a worker did not respond in time,
 * counts as unchanged. So does a flow that a process did not list before: its counters contain all
 * requests since the start. */
export function changes(from, to) {
  const found = [];
  for (const [key, flow] of to.flows) {
    const old = from?.flows.get(key) ?? EMPTY_FLOW;
    if (from && (flow.listed_since ?? 0) !== (old.listed_since ?? 0)) continue;
    const ok = increase(flow.outcomes?.ok, old.outcomes?.ok);
    const requests = Math.max(ok, increase(total(flow.outcomes), total(old.outcomes)));
    if (!requests) continue;
    const clientErrors = Math.min(requests - ok, increase(flow.client_errors, old.client_errors));
    const bounds = new Map((old.seconds?.buckets ?? []).map(([bound, count]) => [bound, count]));
    found.push({
      flow, requests, clientErrors, failures: requests - ok - clientErrors,
      own: increase(flow.gateway_seconds?.sum, old.gateway_seconds?.sum),
      ownCount: increase(flow.gateway_seconds?.count, old.gateway_seconds?.count),
      bytesIn: increase(flow.bytes_in, old.bytes_in),
      bytesOut: increase(flow.bytes_out, old.bytes_out),
      buckets: (flow.seconds?.buckets ?? []).map(([bound, count]) => [bound, increase(count, bounds.get(bound))]),
    });
  }
  return found;
}

/** Return the sum of the flows for which ``matches`` is true. */
export function sumOf(changed, matches) {
  const sum = { requests: 0, clientErrors: 0, failures: 0, own: 0, ownCount: 0, bytesIn: 0, bytesOut: 0, buckets: new Map() };
  for (const change of changed) {
    if (!matches(change.flow)) continue;
    for (const name of ["requests", "clientErrors", "failures", "own", "ownCount", "bytesIn", "bytesOut"]) sum[name] += change[name];
    for (const [bound, count] of change.buckets) sum.buckets.set(bound, (sum.buckets.get(bound) ?? 0) + count);
  }
  return sum;
}

/** Return a quantile like Prometheus' histogram_quantile, or null if the histogram is empty. */
export function quantile(buckets, share) {
  const ordered = [...buckets].map(([bound, count]) => [bound ?? Infinity, count]).sort((a, b) => a[0] - b[0]);
  const count = ordered.length ? ordered.at(-1)[1] : 0;
  if (!count) return null;
  const rank = share * count;
  let [low, before] = [0, 0];
  for (const [high, upTo] of ordered) {
    if (upTo >= rank && upTo > before) {
      return high === Infinity ? low : low + ((high - low) * (rank - before)) / (upTo - before);
    }
    [low, before] = [high, upTo];
  }
  return low;
}

/** Return the recent rates and latencies of the flows for which ``matches`` is true. */
export function recent(history, matches) {
  const { last } = history;
  const span = last.time - history.before(RATE_SECONDS).time;
  const now = sumOf(history.changed(RATE_SECONDS), matches);
  const longer = sumOf(history.changed(LATENCY_SECONDS), matches);
  const perSecond = (value) => (span > 0 ? value / span : 0);
  return {
    rate: perSecond(now.requests),
    failures: perSecond(now.failures),
    failureShare: now.requests ? now.failures / now.requests : 0,
    clientErrors: perSecond(now.clientErrors),
    clientErrorShare: now.requests ? now.clientErrors / now.requests : 0,
    bytesIn: perSecond(now.bytesIn),
    bytesOut: perSecond(now.bytesOut),
    p50: quantile(longer.buckets, 0.5),
    p99: quantile(longer.buckets, 0.99),
  };
}

// ---- formatting

const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

export function rate(value) {
  if (!value) return "0/s";
  if (value < 0.05) return "<0.1/s";
  return value >= 10000 ? `${digits(value / 1000)}k/s` : `${value >= 100 ? value.toFixed(0) : value.toFixed(1)}/s`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  return value < 1 ? `${digits(value * 1000)} ms` : `${digits(value)} s`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? digits(value) : value.toFixed(0)} ${units[unit]}`;
}

export const percent = (share) => `${share * 100 >= 10 ? (share * 100).toFixed(0) : (share * 100).toFixed(1)}%`;

export const count = (value) => Math.round(value).toLocaleString("en");

export function ago(then, now) {
  const passed = Math.max(0, now - then);
  if (passed < 5) return "just now";
  if (passed < 90) return `${passed.toFixed(0)} s ago`;
  if (passed < 5400) return `${(passed / 60).toFixed(0)} min ago`;
  return passed < 172800 ? `${(passed / 3600).toFixed(0)} h ago` : `${(passed / 86400).toFixed(0)} days ago`;
}

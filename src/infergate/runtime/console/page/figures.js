// From states of all time to what happened lately. Pure.

/** Seconds that rates are of, and those that latencies are of. */
export const LATELY = 5;
export const A_WHILE = 20;
const KEPT = 90;

export const keyOf = (flow) =>
  JSON.stringify([flow.route, flow.protocol, flow.backend, flow.backend_protocol, flow.operation]);

const total = (outcomes = {}) => Object.values(outcomes).reduce((sum, each) => sum + each, 0);

/** States, one after the other, of one process: one that restarts begins anew. */
export class History {
  constructor() {
    this.states = [];
    this.known = new Map();
  }

  add(state) {
    const flows = new Map(state.flows.map((flow) => [keyOf(flow), flow]));
    const endpoints = new Map(state.endpoints.map((each) => [`${each.backend} ${each.endpoint}`, each]));
    this.states.push({ time: state.time, flows, endpoints, state });
    if (this.states.length > KEPT) this.states.shift();
    this.known.clear();
  }

  clear() {
    this.states = [];
  }

  get last() {
    return this.states.at(-1);
  }

  /** The state of so many seconds ago, or the oldest there is after that. */
  before(seconds) {
    const from = this.last.time - seconds - 0.5;
    return this.states.find((each) => each.time >= from);
  }

  /** What was added in so many seconds; made once for each state. */
  changed(seconds) {
    if (!this.known.has(seconds)) this.known.set(seconds, changes(this.before(seconds), this.last));
    return this.known.get(seconds);
  }
}

const NOTHING = { outcomes: {}, seconds: { sum: 0, count: 0, buckets: [] }, bytes_in: 0, bytes_out: 0 };
const more = (now, before) => Math.max(0, (now ?? 0) - (before ?? 0));

/** What was added to each flow between two states, of those that anything was added to. Counters of
 * workers that did not answer in time may fall for a moment: that is nothing. */
export function changes(from, to) {
  const found = [];
  for (const [key, flow] of to.flows) {
    const old = from.flows.get(key) ?? NOTHING;
    const ok = more(flow.outcomes?.ok, old.outcomes?.ok);
    const requests = Math.max(ok, more(total(flow.outcomes), total(old.outcomes)));
    if (!requests) continue;
    const bounds = new Map((old.seconds?.buckets ?? []).map(([bound, count]) => [bound, count]));
    found.push({
      flow, requests, errors: requests - ok,
      own: more(flow.own_seconds?.sum, old.own_seconds?.sum),
      owned: more(flow.own_seconds?.count, old.own_seconds?.count),
      bytesIn: more(flow.bytes_in, old.bytes_in),
      bytesOut: more(flow.bytes_out, old.bytes_out),
      buckets: (flow.seconds?.buckets ?? []).map(([bound, count]) => [bound, more(count, bounds.get(bound))]),
    });
  }
  return found;
}

/** Those of the flows that ``wanted`` lets through, together. */
export function together(changed, wanted) {
  const sum = { requests: 0, errors: 0, own: 0, owned: 0, bytesIn: 0, bytesOut: 0, buckets: new Map() };
  for (const each of changed) {
    if (!wanted(each.flow)) continue;
    for (const name of ["requests", "errors", "own", "owned", "bytesIn", "bytesOut"]) sum[name] += each[name];
    for (const [bound, count] of each.buckets) sum.buckets.set(bound, (sum.buckets.get(bound) ?? 0) + count);
  }
  return sum;
}

/** As Prometheus' histogram_quantile; null where nothing was counted. */
export function quantile(buckets, share) {
  const ordered = [...buckets].map(([bound, count]) => [bound ?? Infinity, count]).sort((a, b) => a[0] - b[0]);
  const whole = ordered.length ? ordered.at(-1)[1] : 0;
  if (!whole) return null;
  const rank = share * whole;
  let [low, before] = [0, 0];
  for (const [high, count] of ordered) {
    if (count >= rank && count > before) {
      return high === Infinity ? low : low + ((high - low) * (rank - before)) / (count - before);
    }
    [low, before] = [high, count];
  }
  return low;
}

/** Rates and latencies of some flows, lately. */
export function lately(history, wanted) {
  const { last } = history;
  const span = last.time - history.before(LATELY).time;
  const now = together(history.changed(LATELY), wanted);
  const longer = together(history.changed(A_WHILE), wanted);
  const each = (value) => (span > 0 ? value / span : 0);
  return {
    rate: each(now.requests),
    errors: each(now.errors),
    share: now.requests ? now.errors / now.requests : 0,
    bytesIn: each(now.bytesIn),
    bytesOut: each(now.bytesOut),
    p50: quantile(longer.buckets, 0.5),
    p99: quantile(longer.buckets, 0.99),
  };
}

// ---- how figures are spelt

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

// The Comparison tab: the report on the responses of mirrors, by model and output.

import { get } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { count, seconds } from "./statistics.js";

const HEADINGS = ["model, output", "verdict", "compared", "different", "noise", "smallest atol", "p99 of the error", "old p50, p99", "new p50, p99"];

export async function refresh() {
  const report = await get("../comparisons?format=report");
  const headline = byId("comparison-headline");
  setText(headline, report.headline);
  headline.dataset.verdict = report.verdict;
  setText(byId("comparison-conclusion"), report.conclusion);
  byId("comparison-notes").replaceChildren(...report.notes.map((note) => el("li", {}, note)));
  const rows = report.models.flatMap((model) => [modelRow(model), ...model.outputs.map(outputRow)]);
  const head = el("tr", {}, HEADINGS.map((name) => el("th", { scope: "col" }, name)));
  byId("comparison-table").replaceChildren(
    el("caption", { class: "unseen" }, "Comparisons by model and output"), el("thead", {}, head), el("tbody", {}, rows),
  );
}

function modelRow(model) {
  const { expected, actual } = model.latency_seconds;
  const different = model.compared - model.equal - model.known;
  return row(
    el("b", {}, model.model), model.verdict, [count(model.compared), count(different), "", "", "", times(expected), times(actual)], model.route,
  );
}

function outputRow(output) {
  const noise = output.noise_compared ? `${count(output.noise_differing)} of ${count(output.noise_compared)}` : "not measured";
  const atol = output.unresolvable ? "none" : output.required_atol.toPrecision(2);
  const error = output.error_quantiles.p99;
  return row(
    el("code", {}, output.output), output.verdict,
    [count(output.compared), count(output.differing), noise, atol, error === null ? "infinite" : error.toPrecision(2), "", ""], output.reason,
  );
}

function row(name, verdict, cells, title) {
  const mark = el("span", { class: "verdict", "data-verdict": verdict }, verdict.replaceAll("_", " "));
  return el("tr", {}, el("th", { scope: "row", title }, name), el("td", {}, mark), cells.map((text) => el("td", {}, text)));
}

const times = (latency) => `${seconds(latency.p50)}, ${seconds(latency.p99)}`;

// Try it: a request in any protocol, and what passes on both sides.

import { post } from "./asking.js";
import { byId, el, say } from "./dom.js";
import { bytes, seconds } from "./figures.js";

const EXAMPLE = [{ name: "INPUT0", datatype: "FP32", shape: [4], data: [0, 1, 2, 3] }];

// ---- the form

export function begin() {
  byId("try-inputs").value = spelt(EXAMPLE);
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("example").addEventListener("click", example);
  byId("try-operation").addEventListener("change", fit);
  for (const radio of document.querySelectorAll("input[name=how]")) {
    radio.addEventListener("change", () => { byId("outcome").dataset.how = radio.value; });
  }
  byId("outcome").dataset.how = "decoded";
}

/** What may be chosen follows the configuration; what was chosen stays. */
export function models(plan) {
  const spoken = [...new Set(plan.listeners.flatMap((each) => each.protocols))].sort().reverse();
  const chosen = byId("try-protocol").value;
  byId("try-protocol").replaceChildren(...spoken.map((name) => el("option", { selected: name === chosen }, name)));
  byId("try-models").replaceChildren(...plan.models.slice(0, 500).map((name) => el("option", { value: name })));
  if (!byId("try-model").value) byId("try-model").value = plan.models[0] ?? "";
}

export function allowed(state) {
  byId("try-off").hidden = state.actions.try;
  byId("form").hidden = !state.actions.try;
}

function fit() {
  const operation = byId("try-operation").value;
  byId("try-inputs").closest("label").hidden = operation !== "infer";
  byId("example").hidden = operation !== "infer";
  byId("try-model").required = !operation.startsWith("server");
}

const spelt = (inputs) =>
  `[\n${inputs.map((each) => `  ${JSON.stringify(each).replaceAll('","', '", "').replaceAll('":', '": ').replaceAll(',"', ', "')}`).join(",\n")}\n]`;

function asked() {
  const headers = {};
  for (const line of byId("try-headers").value.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`a header is name: value, and not '${line}'`);
    headers[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  const operation = byId("try-operation").value;
  return {
    protocol: byId("try-protocol").value, operation, model: byId("try-model").value.trim(),
    version: byId("try-version").value.trim(), binary: byId("try-binary").checked, headers,
    inputs: operation === "infer" ? JSON.parse(byId("try-inputs").value) : [],
  };
}

async function example() {
  await act("Asking for the metadata …", "try/example", (told) => {
    byId("try-inputs").value = spelt(told.inputs);
    say(byId("try-note"), told.inputs.length ? "These inputs fit the model's metadata." : "The model's metadata tells no inputs.");
  });
}

async function send() {
  await act("Sending …", "try", (told) => {
    say(byId("try-note"), "");
    show(told);
  });
}

async function act(note, path, then) {
  let body;
  try {
    body = asked();
  } catch (error) {
    say(byId("try-note"), `Not sent: ${error.message}`);
    return;
  }
  const buttons = [byId("send"), byId("example")];
  for (const each of buttons) each.disabled = true;
  say(byId("try-note"), note);
  const answer = await post(path, body);
  for (const each of buttons) each.disabled = false;
  if (answer.ok && answer.json) then(answer.json);
  else say(byId("try-note"), `Not sent: ${answer.json?.error ?? answer.text}`);
}

// ---- what became of it

function show(told) {
  const well = told.outcome === "ok";
  const route = told.route ? `route ${told.route}` : "no route";
  byId("try-summary").replaceChildren(
    el("span", { class: "pill", "data-health": well ? "up" : "down" }, told.outcome),
    tag(told.protocol), told.way ? el("span", { class: "way", "data-way": told.way }, told.way === "forward" ? "forwarded" : "translated") : "",
    told.backend ? tag(told.backend_protocol) : "",
    el("span", { class: "muted" }, `${route}${told.backend ? `, backend ${told.backend}` : ""} · ${seconds(told.seconds)}, of which the backend ${seconds(told.backend_seconds)}`),
    ...(well ? [] : [el("span", {}, `${told.error} ${told.meaning} `, el("b", {}, told.advice ? "What to do: " : ""), told.advice)]),
  );
  const client = el("div", { class: "side" }, el("h4", {}, "Client and infergate ", tag(told.protocol)),
    wire(told.request, told.protocol, "client → infergate"), wire(told.answer, told.protocol, "infergate → client"));
  const behind = el("div", { class: "side" });
  for (const each of told.exchanges) {
    behind.append(el("h4", {}, `infergate and ${each.backend} `, tag(told.backend_protocol), el("code", { class: "muted" }, each.endpoint)),
      wire(each.request, told.backend_protocol, `infergate → ${each.backend}`),
      each.answer ? wire(each.answer, told.backend_protocol, `${each.backend} → infergate, after ${seconds(each.seconds)}`) : el("p", { class: "empty" }, each.error));
  }
  if (!told.exchanges.length) {
    const why = well ? "There is no other side: infergate answered this itself, or the model runs inside it." : "Nothing was sent to a backend.";
    behind.append(el("h4", {}, "infergate and the backend"), el("p", { class: "empty" }, why));
  }
  byId("sides").replaceChildren(client, behind);
  say(byId("try-result"), told.result);
  byId("outcome").hidden = false;
}

const tag = (protocol) => el("span", { class: "tag", "data-protocol": protocol }, protocol);

function wire(told, protocol, direction) {
  const headers = told.headers.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  const label = (what) => `${direction}, ${what}`;
  const unknown = told.size ? "Nobody decodes this here: see its bytes." : "No body.";
  return el(
    "article", { class: "wire", "data-protocol": protocol },
    el("header", {}, el("p", { class: "what" }, el("span", {}, direction), el("span", {}, bytes(told.size))), el("p", { class: "start" }, told.start)),
    headers.length ? el("dl", {}, headers) : null,
    el("pre", { class: "decoded", tabindex: 0, "aria-label": label("decoded") }, told.decoded || unknown),
    el("pre", { class: "bytes", tabindex: 0, "aria-label": label("bytes") }, told.bytes || "No body."),
  );
}

// The Try it tab: sends a request in any protocol and shows the messages on both sides.

import { post } from "./api.js";
import { byId, el, setText } from "./dom.js";
import { bytes, seconds } from "./statistics.js";

const EXAMPLE = [{ name: "INPUT0", datatype: "FP32", shape: [4], data: [0, 1, 2, 3] }];

// ---- the form

export function init() {
  byId("try-inputs").value = formatInputs(EXAMPLE);
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("example").addEventListener("click", example);
  byId("try-operation").addEventListener("change", updateFields);
  for (const radio of document.querySelectorAll("input[name=how]")) {
    radio.addEventListener("change", () => { byId("outcome").dataset.how = radio.value; });
  }
  byId("outcome").dataset.how = "decoded";
}

/** Offer the protocols and models of the configuration, and keep the current choice. */
export function showChoices(plan) {
  const protocols = [...new Set(plan.listeners.flatMap((listener) => listener.protocols))].sort().reverse();
  const chosen = byId("try-protocol").value;
  byId("try-protocol").replaceChildren(...protocols.map((name) => el("option", { selected: name === chosen }, name)));
  byId("try-models").replaceChildren(...plan.models.slice(0, 500).map((name) => el("option", { value: name })));
  if (!byId("try-model").value) byId("try-model").value = plan.models[0] ?? "";
}

export function showPermission(state) {
  byId("try-off").hidden = state.actions.try;
  byId("form").hidden = !state.actions.try;
}

function updateFields() {
  const operation = byId("try-operation").value;
  byId("try-inputs").closest("label").hidden = operation !== "infer";
  byId("example").hidden = operation !== "infer";
  byId("try-model").required = !operation.startsWith("server");
}

const formatInputs = (inputs) =>
  `[\n${inputs.map((each) => `  ${JSON.stringify(each).replaceAll('","', '", "').replaceAll('":', '": ').replaceAll(',"', ', "')}`).join(",\n")}\n]`;

function readForm() {
  const headers = {};
  for (const line of byId("try-headers").value.split("\n").filter((text) => text.trim())) {
    const colon = line.indexOf(":");
    if (colon < 1) throw new Error(`expected a header as "name: value", got '${line}'`);
    headers[line.slice(0, colon).trim()] = line.slice(colon + 1).trim();
  }
  const operation = byId("try-operation").value;
  return {
    protocol: byId("try-protocol").value, operation, model: byId("try-model").value.trim(),
    version: byId("try-version").value.trim(), binary: byId("try-binary").checked, headers,
    inputs: operation === "infer" ? JSON.parse(byId("try-inputs").value) : [],
  };
}

async function example() {
  await submit("Reading the metadata …", "try/example", (result) => {
    byId("try-inputs").value = formatInputs(result.inputs);
    setText(byId("try-note"), result.inputs.length ? "These inputs match the model's metadata." : "The model's metadata has no inputs.");
  });
}

async function send() {
  await submit("Sending …", "try", (result) => {
    setText(byId("try-note"), "");
    show(result);
  });
}

async function submit(note, path, then) {
  let body;
  try {
    body = readForm();
  } catch (error) {
    setText(byId("try-note"), `Not sent: ${error.message}`);
    return;
  }
  const buttons = [byId("send"), byId("example")];
  for (const button of buttons) button.disabled = true;
  setText(byId("try-note"), note);
  const response = await post(path, body);
  for (const button of buttons) button.disabled = false;
  if (response.ok && response.json) then(response.json);
  else setText(byId("try-note"), `Not sent: ${response.json?.error ?? response.text}`);
}

// ---- the result

function show(result) {
  const isOk = result.outcome === "ok";
  const route = result.route ? `route ${result.route}` : "no route";
  byId("try-summary").replaceChildren(
    el("span", { class: "pill", "data-health": isOk ? "up" : "down" }, result.outcome),
    tag(result.protocol), result.pipeline ? el("span", { class: "pipeline", "data-pipeline": result.pipeline }, result.pipeline === "forward" ? "passed through" : "translated") : "",
    result.backend ? tag(result.backend_protocol) : "",
    el("span", { class: "muted" }, `${route}${result.backend ? `, backend ${result.backend}` : ""} · ${seconds(result.seconds)}, of which ${seconds(result.backend_seconds)} in the backend`),
    ...(isOk ? [] : [el("span", {}, `${result.error} ${result.meaning} `, el("b", {}, result.advice ? "What to do: " : ""), result.advice)]),
  );
  const client = el("div", { class: "side" }, el("h4", {}, "Client and infergate ", tag(result.protocol)),
    messageView(result.request, result.protocol, "client → infergate"), messageView(result.answer, result.protocol, "infergate → client"));
  const backend = el("div", { class: "side" });
  for (const exchange of result.exchanges) {
    backend.append(el("h4", {}, `infergate and ${exchange.backend} `, tag(result.backend_protocol), el("code", { class: "muted" }, exchange.endpoint)),
      messageView(exchange.request, result.backend_protocol, `infergate → ${exchange.backend}`),
      exchange.answer ? messageView(exchange.answer, result.backend_protocol, `${exchange.backend} → infergate, after ${seconds(exchange.seconds)}`) : el("p", { class: "empty" }, exchange.error));
  }
  if (!result.exchanges.length) {
    const reason = isOk ? "There is no backend request: infergate responded itself, or the model is embedded." : "Nothing was sent to a backend.";
    backend.append(el("h4", {}, "infergate and the backend"), el("p", { class: "empty" }, reason));
  }
  byId("sides").replaceChildren(client, backend);
  setText(byId("try-result"), result.result);
  byId("outcome").hidden = false;
}

const tag = (protocol) => el("span", { class: "tag", "data-protocol": protocol }, protocol);

function messageView(message, protocol, direction) {
  const headers = message.headers.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  const label = (form) => `${direction}, ${form}`;
  const fallback = message.size ? "This message cannot be decoded here; see its bytes." : "No body.";
  return el(
    "article", { class: "wire", "data-protocol": protocol },
    el("header", {}, el("p", { class: "what" }, el("span", {}, direction), el("span", {}, bytes(message.size))), el("p", { class: "start" }, message.start)),
    headers.length ? el("dl", {}, headers) : null,
    el("pre", { class: "decoded", tabindex: 0, "aria-label": label("decoded") }, message.decoded || fallback),
    el("pre", { class: "bytes", tabindex: 0, "aria-label": label("bytes") }, message.bytes || "No body."),
  );
}

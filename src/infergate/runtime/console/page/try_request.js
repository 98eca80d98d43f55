// The Try it tab: sends a request in any protocol and shows the messages on both sides.

import { post } from "./api.js";
import { byId, el, PIPELINES, setText, tag } from "./dom.js";
import { DrawingPad, MAX_SIZE, MIN_SIZE } from "./drawing_pad.js";
import { bytes, seconds } from "./statistics.js";
import { picture, scores } from "./tensor_view.js";

const DIGITS = /^digits(-|$)/;
const DIGIT = { name: "IMAGE", datatype: "FP32", shape: [1, 8, 8] };
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
  for (const [name, id] of [["how", "outcome"], ["how-all", "all-outcome"]]) {
    byId(id).dataset.how = "decoded";
    for (const radio of document.querySelectorAll(`input[name=${name}]`)) {
      radio.addEventListener("change", () => { byId(id).dataset.how = radio.value; });
    }
  }
  byId("send-all").addEventListener("click", sendAll);
  byId("write-code").addEventListener("click", writeCode);
  byId("code-client").addEventListener("change", showCode);
  byId("code-copy").addEventListener("click", copyCode);
  byId("try-model").addEventListener("input", showPad);
  byId("try-inputs").addEventListener("input", showPad);
  pad = new DrawingPad((pixels) => {
    byId("try-inputs").value = formatInputs([{ ...drawn, data: pixels }]);
  });
}

let pad = null;
let drawn = DIGIT; // the input that the pad draws, without its data
let protocols = [];
let code = {};

/** Show the pad if the model reads digits, or if its only input is a small image of one channel. */
function showPad() {
  const isDigit = DIGITS.test(byId("try-model").value);
  const input = isDigit ? DIGIT : drawableInput();
  byId("pad-area").hidden = !input || byId("try-operation").value !== "infer";
  if (!input) return;
  drawn = input;
  const ink = isDigit ? 16 : /^U?INT/.test(input.datatype) ? (input.datatype === "INT8" ? 127 : 255) : 1;
  pad.resize(...planeOf(input), ink, isDigit);
}

const planeOf = (input) => input.shape.filter((size) => size !== 1);

/** Return the form's input without its data if it is the only input and the pad can draw it, or null. */
function drawableInput() {
  let inputs;
  try {
    inputs = JSON.parse(byId("try-inputs").value);
  } catch {
    return null; // someone is typing
  }
  const input = Array.isArray(inputs) && inputs.length === 1 ? inputs[0] : null;
  if (!Array.isArray(input?.shape) || !/^(FP|U?INT)\d/.test(input.datatype)) return null;
  const plane = planeOf(input);
  if (plane.length !== 2 || !plane.every((size) => size >= MIN_SIZE && size <= MAX_SIZE)) return null;
  return { name: input.name, datatype: input.datatype, shape: input.shape };
}

/** Offer the protocols and models of the configuration, and keep the current choice. */
export function showChoices(plan) {
  protocols = [...new Set(plan.listeners.flatMap((listener) => listener.protocols))].sort().reverse();
  const chosen = byId("try-protocol").value;
  byId("try-protocol").replaceChildren(...protocols.map((name) => el("option", { selected: name === chosen }, name)));
  byId("try-models").replaceChildren(...plan.models.slice(0, 500).map((name) => el("option", { value: name })));
  if (!byId("try-model").value) {
    const isDemo = !plan.models.length;
    byId("try-model").value = isDemo ? "digits" : plan.models[0];
    showPad();
    if (isDemo) byId("pad-seven").click();
  }
  showPad();
}

export function showPermission(state) {
  byId("try-off").hidden = state.actions.try;
  byId("form").hidden = !state.actions.try;
  byId("try-demo").hidden = !state.demo;
}

function updateFields() {
  const operation = byId("try-operation").value;
  byId("try-inputs").closest("label").hidden = operation !== "infer";
  byId("example").hidden = operation !== "infer";
  showPad();
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
    showPad();
    setText(byId("try-note"), result.inputs.length ? "These inputs match the model's metadata." : "The model's metadata has no inputs.");
  });
}

async function send() {
  await submit("Sending …", "try", (result) => {
    setText(byId("try-note"), "");
    show(result);
  });
}

function setBusy(isBusy) {
  for (const id of ["send", "send-all", "write-code", "example"]) byId(id).disabled = isBusy;
}

/** Disable the buttons and return the body to send, or null if the form has a mistake. */
function beginSending() {
  try {
    const body = readForm();
    setBusy(true);
    return body;
  } catch (error) {
    setText(byId("try-note"), `Not sent: ${error.message}`);
    return null;
  }
}

/** Send the request in each protocol, one after the other. */
async function sendAll() {
  const body = beginSending();
  if (!body) return;
  byId("all-protocols").replaceChildren();
  byId("all-outcome").hidden = false;
  for (const protocol of protocols) {
    setText(byId("try-note"), `Sending in ${protocol} …`);
    const response = await post("try", { ...body, protocol });
    byId("all-protocols").append(protocolItem(protocol, response));
  }
  setText(byId("try-note"), "");
  setBusy(false);
}

function protocolItem(protocol, response) {
  const result = response.ok ? response.json : null;
  const outcome = result ? result.outcome : "not sent";
  const facts = result
    ? `${bytes(result.request.size)} there, ${bytes(result.answer.size)} back, ${seconds(result.seconds)}${result.pipeline ? `, ${PIPELINES[result.pipeline]}` : ""}`
    : response.json?.error ?? response.text;
  return el("li", {}, el("details", {},
    el("summary", {}, tag(protocol), el("span", { class: "pill", "data-health": outcome === "ok" ? "up" : "down" }, outcome), el("span", { class: "muted" }, facts)),
    result ? el("div", { class: "sides" },
      el("div", { class: "side" }, messageView(result.request, protocol, "client → infergate"), messageView(result.answer, protocol, "infergate → client")),
      el("div", { class: "side" }, result.exchanges.length
        ? result.exchanges.flatMap((exchange) => exchangeViews(exchange, result.backend_protocol))
        : el("p", { class: "empty" }, "The model is embedded: there is no message to a backend."))) : null));
}

async function writeCode() {
  await submit("Writing the code …", "try/code", (result) => {
    setText(byId("try-note"), "");
    code = result.code;
    const chosen = byId("code-client").value;
    byId("code-client").replaceChildren(...Object.keys(code).map((name) => el("option", { selected: name === chosen }, name)));
    byId("code-outcome").hidden = false;
    showCode();
  });
}

function showCode() {
  setText(byId("code-text"), code[byId("code-client").value] ?? "");
  setText(byId("code-note"), "");
}

async function copyCode() {
  try {
    await navigator.clipboard.writeText(byId("code-text").textContent);
    setText(byId("code-note"), "Copied.");
  } catch {
    getSelection().selectAllChildren(byId("code-text")); // browsers allow copying only on secure origins
    setText(byId("code-note"), "Selected; press Ctrl+C.");
  }
}

async function submit(note, path, then) {
  const body = beginSending();
  if (!body) return;
  setText(byId("try-note"), note);
  const response = await post(path, body);
  setBusy(false);
  if (response.ok && response.json) then(response.json);
  else setText(byId("try-note"), `Not sent: ${response.json?.error ?? response.text}`);
}

// ---- the result

function show(result) {
  const isOk = result.outcome === "ok";
  const route = result.route ? `route ${result.route}` : "no route";
  byId("try-summary").replaceChildren(
    el("span", { class: "pill", "data-health": isOk ? "up" : "down" }, result.outcome),
    tag(result.protocol), result.pipeline ? el("span", { class: "pipeline", "data-pipeline": result.pipeline }, PIPELINES[result.pipeline]) : "",
    result.backend ? tag(result.backend_protocol) : "",
    el("span", { class: "muted" }, `${route}${result.backend ? `, backend ${result.backend}` : ""} · ${seconds(result.seconds)}, of which ${seconds(result.backend_seconds)} in the backend`),
    ...(isOk ? [] : [el("span", {}, `${result.error} ${result.meaning} `, el("b", {}, result.advice ? "What to do: " : ""), result.advice)]),
  );
  const client = el("div", { class: "side" }, el("h4", {}, "Client and infergate ", tag(result.protocol)),
    messageView(result.request, result.protocol, "client → infergate"), messageView(result.answer, result.protocol, "infergate → client"));
  const backend = el("div", { class: "side" });
  for (const exchange of result.exchanges) {
    backend.append(el("h4", {}, `infergate and ${exchange.backend} `, tag(result.backend_protocol), el("code", { class: "muted" }, exchange.endpoint)),
      ...exchangeViews(exchange, result.backend_protocol));
  }
  if (!result.exchanges.length) {
    const reason = isOk ? "There is no backend request: infergate responded itself, or the model is embedded." : "Nothing was sent to a backend.";
    backend.append(el("h4", {}, "infergate and the backend"), el("p", { class: "empty" }, reason));
  }
  byId("sides").replaceChildren(client, backend);
  setText(byId("try-result"), result.result);
  showViews(result);
  byId("outcome").hidden = false;
}

const exchangeViews = (exchange, protocol) => [
  messageView(exchange.request, protocol, `infergate → ${exchange.backend}`),
  exchange.answer ? messageView(exchange.answer, protocol, `${exchange.backend} → infergate, after ${seconds(exchange.seconds)}`) : el("p", { class: "empty" }, exchange.error),
];

/** Show the inputs as pictures, and the outputs as bars if possible, or otherwise as pictures. */
function showViews(result) {
  let inputs = [];
  let outputs = [];
  try {
    inputs = JSON.parse(byId("try-inputs").value);
    outputs = JSON.parse(result.result).outputs ?? [];
  } catch {
    // a shortened response is only shown as text
  }
  const views = [...inputs.map(picture), ...outputs.map((tensor) => scores(tensor) ?? picture(tensor))].filter(Boolean).slice(0, 8);
  byId("try-views").replaceChildren(...views);
}

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

// The demo's buttons: start servers and traffic, break a server and repair it.

import { post } from "./api.js";
import { byId, setText } from "./dom.js";

let isBroken = false;

export function init() {
  byId("demo-start").addEventListener("click", () => perform("start"));
  byId("demo-stop").addEventListener("click", () => perform("stop"));
  byId("demo-break").addEventListener("click", () => perform(isBroken ? "repair" : "break"));
}

async function perform(action) {
  setText(byId("demo-note"), "…");
  const response = await post("demo", { action });
  setText(byId("demo-note"), response.ok ? "" : `Not done: ${response.json?.error ?? response.text}`);
  if (response.ok && response.json) showDemo(response.json);
}

export function show(state) {
  byId("demo").hidden = !state.demo;
  if (state.demo) showDemo(state.demo);
}

function showDemo(demo) {
  isBroken = demo.broken.length > 0;
  byId("demo-start").disabled = demo.traffic;
  byId("demo-break").disabled = !demo.running;
  byId("demo-stop").disabled = !demo.running;
  setText(byId("demo-break"), isBroken ? "Repair the server" : "Break a server");
  setText(byId("demo-state"), !demo.running ? "Generate traffic to start two servers and clients of every protocol. Then break a server, and watch Live and History."
    : isBroken ? "Server two is broken: its endpoints fail, and requests go to server one." : "Two servers get requests of every protocol.");
}

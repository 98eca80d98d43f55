// Requests to the gateway.

import { byId } from "./dom.js";

export async function get(path) {
  const response = await fetch(path, { credentials: "omit", cache: "no-store" });
  if (!response.ok) throw new Error(`HTTP ${response.status}: ${await response.text()}`);
  return response.json();
}

/** Send a request that changes something, with the header that other websites cannot send, and the
 * key, which is kept only in its input field. */
export async function post(path, body) {
  const headers = { "x-infergate-console": "1", "content-type": "application/json" };
  const key = byId("key").value.trim();
  if (key) headers["x-api-key"] = key;
  try {
    const response = await fetch(path, { method: "POST", credentials: "omit", headers, body: body && JSON.stringify(body) });
    const text = await response.text();
    let json = null;
    if ((response.headers.get("content-type") ?? "").startsWith("application/json")) json = JSON.parse(text);
    return { ok: response.ok, status: response.status, text: text.trim(), json };
  } catch (error) {
    return { ok: false, status: 0, text: String(error), json: null };
  }
}

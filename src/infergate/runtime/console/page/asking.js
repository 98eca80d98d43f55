// What the page asks of the gateway.

import { byId } from "./dom.js";

export async function get(path) {
  const answer = await fetch(path, { credentials: "omit", cache: "no-store" });
  if (!answer.ok) throw new Error(`HTTP ${answer.status}: ${await answer.text()}`);
  return answer.json();
}

/** To change something: with the header that pages of elsewhere cannot send, and the key, which is
 * kept in the field alone. */
export async function post(path, body) {
  const headers = { "x-infergate-console": "1", "content-type": "application/json" };
  const key = byId("key").value.trim();
  if (key) headers["x-api-key"] = key;
  try {
    const answer = await fetch(path, { method: "POST", credentials: "omit", headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    let json = null;
    if ((answer.headers.get("content-type") ?? "").startsWith("application/json")) json = JSON.parse(text);
    return { ok: answer.ok, status: answer.status, text: text.trim(), json };
  } catch (error) {
    return { ok: false, status: 0, text: String(error), json: null };
  }
}

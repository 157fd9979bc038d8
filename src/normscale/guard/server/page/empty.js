// Before the first row: how to send one.

import { token } from "./api.js";
import { byId, say } from "./dom.js";

export function showEmpty(view) {
  const empty = view.scored === 0;
  byId("empty").hidden = !empty;
  byId("filled").hidden = empty;
  if (empty) say(byId("curl"), curlLine(view));
}

// As many logits as the guard has classes, the first the largest.
function curlLine(view) {
  const n = view.classes.name.length;
  const logits = Array.from({ length: Math.min(n, 12) }, (_, k) => (k ? 0 : 5)).join(", ");
  const more = n > 12 ? `, … ${n} in all` : "";
  const bearer = token() === null ? "" : " \\\n  -H 'Authorization: Bearer TOKEN'";
  const address = new URL("v1/score", location.href).href;
  return `curl ${address} \\\n  -H 'Content-Type: application/json'${bearer} \\\n  -d '{"logits": [[${logits}${more}]]}'`;
}

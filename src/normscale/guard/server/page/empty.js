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
  const up = location.pathname.endsWith(`/${view.name}/`) ? "../" : ""; // one of several guards
  const address = new URL(`${up}v2/models/${view.name}/infer`, location.href).href;
  const tensor = `{"name": "logits", "shape": [1, ${n}], "datatype": "FP32", "data": [${logits}${more}]}`;
  return `curl ${address} \\\n  -H 'Content-Type: application/json'${bearer} \\\n  -d '{"inputs": [${tensor}]}'`;
}

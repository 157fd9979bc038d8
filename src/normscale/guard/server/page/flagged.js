// The latest rows that the guard flagged.

import { nameOf } from "./classes.js";
import { byId, grow, make, say } from "./dom.js";
import { NONE, clock, count, decimal } from "./format.js";

const KINDS = ["", "number", "", "", "number"];
const newRow = () => make("tr", {}, ...KINDS.map((kind) => make("td", { class: kind })));

export function showFlagged(view) {
  const n = view.flagged.length;
  const rows = grow(byId("flagged").tBodies[0], n, newRow);
  view.flagged.forEach(({ at, score, predicted, client, row }, k) => {
    const texts = [clock(at), decimal(score), nameOf(view, predicted), client ?? NONE, count(row)];
    texts.forEach((text, column) => say(rows[k].cells[column], text));
  });
  say(byId("flagged-summary"), n ? `The last ${n === 1 ? "one" : n}, newest first.` : "None so far.");
}

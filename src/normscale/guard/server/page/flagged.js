// The latest rows that the guard flagged, and why: how far each score lies above the threshold of its class.

import { nameOf } from "./classes.js";
import { byId, grow, make, say, set } from "./dom.js";
import { NONE, clock, count, decimal } from "./format.js";

const KINDS = ["", "", "number", "number", "", "number"];
const newRow = () => make("tr", {}, ...KINDS.map((kind) => make("td", { class: kind })));

export function showFlagged(view) {
  const n = view.flagged.length;
  const rows = grow(byId("flagged").tBodies[0], n, newRow);
  const { value, per_class: own } = view.threshold;
  view.flagged.forEach(({ at, score, predicted, client, row }, k) => {
    const above = score - (own?.[predicted] ?? value);
    const why = above > 0 ? `+${decimal(above)}` : "far out";
    const texts = [clock(at), nameOf(view, predicted), decimal(score), why, client?.split("/").pop() ?? NONE, count(row)];
    texts.forEach((text, column) => say(rows[k].cells[column], text));
    set(rows[k].cells[4], "title", client ?? "");
    set(rows[k].cells[3], "title", above > 0 ? "" : "not above the threshold of now: its numbers lie far outside training, or the threshold was lower");
  });
  const line = own ? "the threshold of its class" : `the threshold ${decimal(value)}`;
  say(byId("flagged-summary"), n ? `The last ${n === 1 ? "one" : n}, newest first, against ${line}.` : "None so far.");
}

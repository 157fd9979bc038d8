// Who sends rows: how many lately, how many of them flagged and, where each has a stream of its own, how that is.

import { byId, grow, make, say, set } from "./dom.js";
import { NONE, clock, count, decimal, isNumber, moment, share } from "./format.js";

const KINDS = ["", "number", "number", "", "own number", "own", "own"];
const newRow = () => make("tr", {}, ...KINDS.map((kind) => make("td", { class: kind })));
const WORDS = { running: "running", alarm: "running, with an alarm", frozen: "frozen by an alarm" };
const MOST = 20;

// Those that are worst off first, then those with most rows.
function merged(view) {
  const found = new Map(view.streams.worst.map((one) => [one.source, { taken: one.rows, ...one, rows: undefined, flagged: undefined }]));
  for (const one of view.sources) found.set(one.source, { ...found.get(one.source), ...one });
  return [...found.values()].slice(0, MOST);
}

export function showSources(view) {
  const own = view.streams.by === "client";
  const sources = merged(view);
  byId("sources-card").hidden = !own && sources.length < 2;
  set(byId("sources"), "class", own ? "" : "shared");
  const rows = grow(byId("sources").tBodies[0], sources.length, newRow);
  sources.forEach((one, k) => {
    const when = view.now - one.at < 43_200 ? clock(one.at) : moment(one.at, view.now);
    const recent = isNumber(one.rows) ? [count(one.rows), share(one.flagged / one.rows)] : [NONE, NONE];
    const near = one.reading ? `${one.reading.replaceAll("_", " ")}, ${decimal(one.part, 2)} of its limit` : NONE;
    const texts = [one.source, ...recent, when, isNumber(one.taken) ? count(one.taken) : NONE, WORDS[one.standing] ?? NONE, near];
    texts.forEach((text, column) => say(rows[k].cells[column], text));
    set(rows[k], "data-standing", one.standing ?? "");
  });
  const kept = Object.values(view.streams.standing).reduce((all, n) => all + n, 0);
  const streams = own ? `Each has a stream of its own: ${count(kept)} are kept, of at most ${count(view.streams.most)}. ` : "";
  say(byId("sources-summary"), `${streams}Rows and flagged ones are of the latest blocks.`);
}

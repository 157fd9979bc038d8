// How the latest scores spread, bar by bar: kept below, flagged above.

import { makeSvg, say, set } from "./dom.js";
import { share } from "./format.js";
import { bar, clamp, linear, sum, ticks } from "./scale.js";

const BINS = 48;
const [SIDES, TOP, BOTTOM] = [16, 44, 22];

export class Histogram {
  constructor(svg) {
    this.svg = svg;
    [this.axis, this.keptBars, this.flaggedBars, this.keptText, this.flaggedText] = svg.children;
    this.domain = [0, 1];
  }

  // The scale from scores to pixels as the chart is now, and where the plot begins and ends.
  measure() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    return { width, top: TOP, floor: height - BOTTOM, x: linear(...this.domain, SIDES, width - SIDES) };
  }

  // `flags` says which of the scores are flagged; `at` is the score where the two sides meet.
  draw(scores, flags, at) {
    const place = this.measure();
    const [kept, flagged] = this.#count(scores, flags);
    const most = Math.max(1, ...kept.map((n, bin) => n + flagged[bin]));
    const y = linear(0, most, place.floor, place.top + 6);
    const x = linear(0, BINS, SIDES, place.width - SIDES);
    const bars = (counts, from) =>
      counts.map((n, bin) => bar(x(bin), x(bin + 1), y(from(bin)), y(from(bin) + n))).join("");
    set(this.keptBars, "d", bars(kept, () => 0));
    set(this.flaggedBars, "d", bars(flagged, (bin) => kept[bin]));
    this.#writeSides(place, sum(flagged) / scores.length, at);
    this.#drawAxis(place);
  }

  // Scores beyond the range belong to the outermost bars.
  #count(scores, flags) {
    const counts = [0, 1].map(() => new Array(BINS).fill(0));
    const bin = linear(...this.domain, 0, BINS);
    scores.forEach((score, row) => (counts[Number(flags[row])][clamp(Math.floor(bin(score)), 0, BINS - 1)] += 1));
    return counts;
  }

  // Each beside the threshold, as far as there is room for it.
  #writeSides({ x, top, width }, flagged, at) {
    const room = 110; // pixels for the longest of the texts
    const line = clamp(x(at), room, width - room);
    say(this.keptText, `kept ${share(1 - flagged)}`);
    say(this.flaggedText, `flagged ${share(flagged)}`);
    set(this.keptText, "x", line - 14);
    set(this.flaggedText, "x", line + 14);
    for (const text of [this.keptText, this.flaggedText]) set(text, "y", top - 30);
  }

  #drawAxis({ x, floor, width }) {
    const key = [...this.domain, floor, width].join();
    if (this.drawn === key) return;
    this.drawn = key;
    const marks = ticks(...this.domain, Math.max(3, Math.floor(width / 90))).flatMap(([value, text]) => [
      makeSvg("path", { d: `M${x(value)} ${floor}v4` }),
      makeSvg("text", { x: x(value), y: floor + 17, "text-anchor": "middle" }, text),
    ]);
    this.axis.replaceChildren(makeSvg("path", { d: `M${SIDES} ${floor}H${width - SIDES}` }), ...marks);
  }
}

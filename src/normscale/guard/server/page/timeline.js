// The share of flagged rows in the last minutes, step by step, with how many rows there were.

import { byId, makeSvg, on, say, set } from "./dom.js";
import { clock, count, hourAndMinute, isNumber, rows, share } from "./format.js";
import { bar, clamp, linear, sum } from "./scale.js";

const MEAN_SECONDS = 30;
const [LEFT, RIGHT, TOP, BOTTOM, VOLUME] = [40, 8, 10, 22, 26];
const MANY = 50; // rows of a step whose share means something by itself
const CEILINGS = [0.05, 0.1, 0.2, 0.3, 0.5, 1];

export class Timeline {
  constructor() {
    this.svg = byId("timeline");
    [this.shade, this.axis, this.volume, this.area, this.mean, this.nominal, this.cursor] = this.svg.children;
    this.at = null; // the step that is read
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.#listen();
  }

  update(view) {
    this.view = view;
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    if (!this.view || !width) return;
    const { rows: all, flagged, kept_out: keptOut, seconds, start } = this.view.timeline;
    const [end, bottom, floor] = [width - RIGHT, height - BOTTOM, height - BOTTOM - VOLUME];
    const shares = all.map((n, k) => (n ? flagged[k] / n : null));
    const means = movingMeans(all, flagged, Math.max(1, Math.round(MEAN_SECONDS / seconds)));
    const { keep } = this.view.threshold;
    const expected = isNumber(keep) ? 1 - keep : null;
    const steady = shares.filter((_, k) => all[k] >= MANY);
    const ceiling = this.#ceiling(Math.max(...means, ...steady, 1.6 * expected, 0.02));
    const x = linear(0, all.length, LEFT, end);
    const y = (value) => Math.max(TOP, linear(0, ceiling, floor, TOP)(value));
    const frozen = this.view.frozen_since ?? Infinity;
    const shaded = all.map((_, k) => keptOut[k] > 0 || start + (k + 1) * seconds > frozen);
    const busiest = Math.max(1, ...all);
    const columns = (heights, gap) =>
      heights.map((height, k) => bar(x(k), x(k + 1), bottom, bottom - height, gap)).join("");

    set(this.area, "d", joined(shares, x, y, floor));
    set(this.mean, "d", joined(means, x, y));
    set(this.nominal, "d", expected === null ? "" : `M${LEFT} ${y(expected)}H${end}`);
    set(this.volume, "d", columns(all.map((n) => (n / busiest) * (VOLUME - 8))));
    set(this.shade, "d", columns(shaded.map((is) => is && bottom - TOP), 0));
    this.scale = { x, n: all.length, bottom };
    this.#drawAxis({ x, y, end, height, ceiling });
    byId("nominal-key").hidden = expected === null;
    say(byId("nominal-key"), `expected ${share(expected)}`);
    this.#write();
  }

  // The smallest round ceiling; it comes down only when there is plenty of room.
  #ceiling(most) {
    if (!(most <= this.top && most > 0.35 * this.top)) this.top = CEILINGS.find((one) => one >= most) ?? 1;
    return this.top;
  }

  #drawAxis({ x, y, end, height, ceiling }) {
    const { start, seconds, rows: all } = this.view.timeline;
    const parts = end < 400 ? [0, 0.5] : [0, 0.25, 0.5, 0.75];
    const times = parts.map((part) => hourAndMinute(start + part * all.length * seconds));
    const key = [end, height, ceiling, ...times].join();
    if (this.drawn === key) return;
    this.drawn = key;
    const text = (at, level, anchor, words) => makeSvg("text", { x: at, y: level, "text-anchor": anchor }, words);
    this.axis.replaceChildren(
      ...[0, 0.5, 1].flatMap((part) => [
        makeSvg("path", { d: `M${LEFT} ${y(part * ceiling)}H${end}` }),
        text(LEFT - 6, y(part * ceiling) + 4, "end", `${100 * part * ceiling} %`),
      ]),
      ...parts.map((part, k) => text(x(part * all.length), height - 6, k ? "middle" : "start", times[k])),
      text(end, height - 6, "end", "now"),
    );
  }

  // All of it in a sentence; or the step under the pointer, or chosen by the arrow keys.
  #write() {
    const { x, n, bottom } = this.scale;
    const { rows: all, flagged, kept_out: keptOut, start, seconds } = this.view.timeline;
    const k = this.at;
    set(this.cursor, "d", k === null ? "" : `M${x(k + 0.5).toFixed(1)} ${TOP}V${bottom}`);
    const part = (some, total) => (total ? ` (${share(some / total)})` : "");
    const reading = () =>
      `${clock(start + k * seconds)}: ${rows(all[k])}, ${flagged[k]} flagged${part(flagged[k], all[k])}` +
      (keptOut[k] ? `, ${keptOut[k]} kept out` : "");
    const [some, total] = [sum(flagged), sum(all)];
    const whole = () =>
      `${count(some)} of ${rows(total)} flagged in ${Math.round((n * seconds) / 60)} minutes${part(some, total)}.`;
    say(byId("timeline-summary"), k === null ? whole() : reading());
  }

  #listen() {
    const read = (k) => {
      if (!this.scale) return;
      this.at = k === null ? null : clamp(k, 0, this.scale.n - 1);
      this.#write();
    };
    on(this.svg, "pointermove", ({ clientX }) => {
      const at = clientX - this.svg.getBoundingClientRect().left;
      if (this.scale) read(Math.floor(linear(this.scale.x(0), this.scale.x(1), 0, 1)(at)));
    });
    on(this.svg, "pointerleave blur", () => read(null));
    on(this.svg, "keydown", (event) => {
      const last = this.scale?.n - 1;
      const at = this.at ?? last;
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, Escape: null };
      if (!(event.key in to)) return;
      event.preventDefault();
      read(to[event.key]);
      say(byId("said"), byId("timeline-summary").textContent);
    });
  }
}

function movingMeans(all, flagged, steps) {
  const total = (list, k) => sum(list.slice(Math.max(0, k + 1 - steps), k + 1));
  return all.map((n, k) => (n ? total(flagged, k) / total(all, k) : null));
}

// A line through the middles of the steps, broken where there were no rows; with a floor, the area under it.
function joined(values, x, y, floor = null) {
  let path = "";
  for (let k = 0; k < values.length; k += 1) {
    if (values[k] === null) continue;
    const start = k;
    while ((values[k + 1] ?? null) !== null) k += 1;
    const middles = values.slice(start, k + 1).map((value, i) => [x(start + i + 0.5), y(value)]);
    const points = start < k ? middles : [k, k + 1].map((at) => [x(at), y(values[k])]); // a step alone lasts, too
    if (floor !== null) points.push([points.at(-1)[0], floor], [points[0][0], floor]);
    path += `M${points.map((point) => point.map((at) => at.toFixed(1)).join(" ")).join("L")}`;
  }
  return path;
}

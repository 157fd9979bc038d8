// The threshold on the histogram: drag it, or move it by keys, see what it would flag, save it.

import { send } from "./api.js";
import { byId, isUsable, on, say, set, setUsable } from "./dom.js";
import { count, decimal, isNumber, share } from "./format.js";
import { Histogram } from "./histogram.js";
import { clamp, range, step } from "./scale.js";

const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -1e9, End: 1e9 };

export class Threshold {
  constructor() {
    this.chart = new Histogram(byId("histogram"));
    this.slider = byId("threshold");
    this.input = byId("threshold-value");
    this.saved = null;
    this.preview = null; // what the person tries; null: as saved
    this.scores = [];
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(this.chart.svg);
  }

  update({ recent, threshold }) {
    const usable = recent.score.map(isNumber);
    [this.scores, this.predicted] = [recent.score, recent.predicted].map((list) => list.filter((_, row) => usable[row]));
    this.saved = threshold;
    this.move(this.preview);
  }

  // Where the line stands.
  get value() {
    return this.preview ?? this.saved.value;
  }

  // Tries a value; null goes back to what is saved.
  move(value) {
    this.preview = value === this.saved.value && !this.saved.per_class ? null : value;
    if (!this.held) this.#fitDomain();
    this.draw();
  }

  draw() {
    if (!this.saved || !this.chart.svg.clientWidth) return;
    const { value, per_class: perClass } = this.saved;
    const now = this.scores.map((score, row) => score > (perClass?.[this.predicted[row]] ?? value));
    const flags = this.preview === null ? now : this.scores.map((score) => score > this.preview);
    this.chart.draw(this.scores, flags, this.value);
    this.#place();
    this.#write(...[flags, now].map((list) => share(list.filter(Boolean).length / list.length)));
  }

  // The range changes only when the scores have clearly left it: a chart that breathes cannot be read.
  #fitDomain() {
    const also = [this.saved.value, this.saved.own, this.preview].filter(isNumber);
    const [left, right] = this.chart.domain;
    const isOutside = (value) => value < left || value > right;
    const [low, high] = range(this.scores, also);
    const fits = this.scores.filter(isOutside).length <= 0.02 * this.scores.length && !also.some(isOutside);
    if (!this.fitted || !fits || high - low < 0.6 * (right - left)) this.chart.domain = [low, high];
    this.fitted = this.scores.length > 0;
  }

  #place() {
    const { x, top, floor } = this.chart.measure();
    const [low, high] = this.chart.domain;
    set(this.slider, "transform", `translate(${x(clamp(this.value, low, high)).toFixed(1)} 0)`);
    set(this.slider.querySelector(".line"), "d", `M0 ${top - 6}V${floor}`);
    const saved = this.preview === null ? "" : `M${x(this.saved.value).toFixed(1)} ${top}V${floor}`;
    set(this.chart.svg.querySelector(".saved"), "d", saved);
    set(this.slider, "aria-valuemin", low);
    set(this.slider, "aria-valuemax", high);
    set(this.slider, "aria-valuenow", this.value);
  }

  #write(flagged, now) {
    const moved = this.preview !== null;
    const n = `of the last ${count(this.scores.length)} rows`;
    const text = moved ? `would flag ${flagged} ${n} (now ${now})` : `flags ${now} ${n}`;
    const perClass = this.saved.per_class ? " Each class has its own threshold; saving one replaces them all." : "";
    set(this.slider, "aria-valuetext", `${decimal(this.value)} ${text}`);
    say(byId("scores-summary"), `${decimal(this.value)} ${text}.${perClass}`);
    if (document.activeElement !== this.input) this.input.value = Number(this.value.toPrecision(6));
    setUsable(byId("save"), moved && !this.saving);
    setUsable(byId("revert"), moved && !this.saving);
    set(byId("own"), "class", this.value === this.saved.own ? "quiet away" : "quiet");
  }

  // About two hundred keystrokes from end to end, on round numbers; the pointer is ten times finer.
  #to(value) {
    const by = step(...this.chart.domain, 200) / 10;
    const [low, high] = this.chart.domain;
    say(byId("threshold-note"), "");
    this.move(Number((Math.round(clamp(value, low, high) / by) * by).toPrecision(12)));
  }

  #under({ clientX }) {
    const [low, high] = this.chart.domain;
    const { x } = this.chart.measure();
    const at = clientX - this.chart.svg.getBoundingClientRect().left;
    return low + ((high - low) * (at - x(low))) / (x(high) - x(low));
  }

  #listen() {
    const { slider, input } = this;
    const { svg } = this.chart;
    on(slider, "keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in KEYS) this.#to(this.value + KEYS[event.key] * step(...this.chart.domain, 200));
      else if (event.key === "Escape") this.#revert();
      else return;
      event.preventDefault();
    });
    on(svg, "pointerdown", (event) => {
      const onLine = slider.contains(event.target);
      // a finger on the bars may be about to scroll; a finger on the line is not
      if (event.button !== 0 || (event.pointerType !== "mouse" && !onLine)) return;
      event.preventDefault();
      slider.focus({ preventScroll: true });
      svg.setPointerCapture(event.pointerId);
      this.held = true;
      this.offset = onLine ? this.#under(event) - this.value : 0;
      if (!onLine) this.#to(this.#under(event));
    });
    on(svg, "pointermove", (event) => this.held && this.#to(this.#under(event) - this.offset));
    on(svg, "lostpointercapture", () => (this.held = false));
    on(input, "input", () => {
      const value = Number(input.value.replace(",", ".").replace("−", "-") || NaN);
      if (isNumber(value)) this.move(value);
    });
    on(input, "blur", () => this.draw());
    on(byId("threshold-form"), "submit", (event) => {
      event.preventDefault();
      if (isUsable(byId("save"))) this.#save();
    });
    on(byId("revert"), "click", () => this.#revert());
    on(byId("own"), "click", () => {
      byId("save").focus(); // the button is about to go
      this.move(this.saved.own);
    });
  }

  #revert() {
    say(byId("threshold-note"), "");
    this.move(null);
  }

  async #save() {
    const { value } = this;
    this.saving = true;
    this.draw();
    try {
      this.saved = (await send("PUT", "v1/threshold", { value: value === this.saved.own ? null : value })).threshold;
      say(byId("threshold-note"), `Saved: the threshold is ${decimal(this.saved.value)}.`);
      if (this.preview === value) this.preview = null;
    } catch (error) {
      say(byId("threshold-note"), `Not saved. ${error.message}`);
    }
    this.saving = false;
    this.draw();
  }
}

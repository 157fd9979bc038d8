// What watches for drift: a gauge for each, with its limit, and the alarm's own words.

import { byId, grow, make, say, set } from "./dom.js";
import { decimal, isNumber, moment } from "./format.js";

const AT = 2 / 3; // of a gauge's width is its limit, so that all can be compared at a glance

export function showReadings(view) {
  const gauges = grow(byId("gauges"), view.readings.length, newGauge);
  view.readings.forEach((reading, k) => {
    const alarm = view.alarms.find((one) => one.name === reading.name);
    showGauge(gauges[k], reading, alarm && `${alarm.text} Since ${moment(alarm.since, view.now)}.`);
  });
}

function newGauge() {
  const head = make("div", { class: "row head" }, make("h3"), make("span", { class: "soft" }));
  const line = make("i", { class: "mark" });
  const meter = make("div", { class: "meter", role: "meter", "aria-valuemin": 0 }, make("i", { class: "fill" }), line);
  line.style.left = `${100 * AT}%`;
  return make("div", {}, head, meter, make("p", { class: "soft" }));
}

function showGauge(gauge, { label, value, limit }, alarm) {
  const [head, meter, words] = gauge.children;
  const known = isNumber(value) && isNumber(limit);
  const figures = known ? `${decimal(value, 2)}, alarm at ${decimal(limit, 2)}` : "";
  say(head.firstChild, label[0].toUpperCase() + label.slice(1));
  say(head.lastChild, figures);
  say(words, alarm ?? (known ? "Quiet." : isNumber(limit) ? "Too few rows to say." : "Not watched."));
  set(gauge, "class", alarm ? "gauge alarmed" : "gauge");
  meter.firstChild.style.width = `${known ? Math.min(100, (100 * AT * value) / limit) : 0}%`;
  set(meter, "aria-label", label);
  set(meter, "aria-valuemax", known ? Math.max(limit / AT, value) : 1);
  set(meter, "aria-valuenow", known ? value : 0);
  set(meter, "aria-valuetext", figures || "not known yet");
}

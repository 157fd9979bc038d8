// What watches for drift: a gauge for each, with its limit, and the alarm's own words.

import { byId, grow, make, say, set } from "./dom.js";
import { decimal, isNumber, moment, share } from "./format.js";

const AT = 2 / 3; // of a gauge's width is its limit, so that all can be compared at a glance

export function showReadings(view) {
  const keep = view.threshold.keep;
  const usual = keep ? `about ${share(1 - keep)} of the rows flagged, and ` : "";
  say(byId("normal"), `Normal is ${usual}every reading left of its mark. A reading beyond its mark is an alarm.`);
  const gauges = grow(byId("gauges"), view.readings.length, newGauge);
  view.readings.forEach((reading, k) => {
    const named = (one) => one.name === reading.name;
    const alarm = view.alarms.find(named);
    const cause = (view.frozen_by ?? []).find(named);
    showGauge(gauges[k], reading, alarm && `${alarm.text} Since ${moment(alarm.since, view.now)}.`, cause, unread(view, reading));
  });
}

// Why a reading has no value.
function unread({ mode, classes, streams }, { name, limit }) {
  if (!isNumber(limit)) return "Not watched.";
  if (streams.by === "client" && (name.startsWith("running") || name === "reference_flags")) return "Read for each source alone.";
  if (name.startsWith("running")) {
    if (mode === "static") return "This detector has no running statistics.";
    if (mode === "frozen") return "Nothing runs while frozen.";
    if (!classes.running_mean) return "This detector keeps no moments of the logits.";
  }
  return "Too few rows to say.";
}

function newGauge() {
  const head = make("div", { class: "row head" }, make("h3"), make("span", { class: "soft" }));
  const line = make("i", { class: "mark" });
  const meter = make("div", { class: "meter", role: "meter", "aria-valuemin": 0 }, make("i", { class: "fill" }), line);
  line.style.left = `${100 * AT}%`;
  return make("div", {}, head, meter, make("p", { class: "froze" }), make("p", { class: "soft" }));
}

function showGauge(gauge, { label, value, limit }, alarm, cause, otherwise) {
  const [head, meter, froze, words] = gauge.children;
  const known = isNumber(value) && isNumber(limit);
  const figures = known ? `${decimal(value, 2)}, alarm at ${decimal(limit, 2)}` : "";
  say(head.firstChild, label[0].toUpperCase() + label.slice(1));
  say(head.lastChild, figures);
  say(froze, cause ? `When it froze: ${decimal(cause.value, 2)}, beyond the limit of ${decimal(cause.limit, 2)}.` : "");
  froze.hidden = !cause;
  say(words, alarm ?? (known ? (cause ? "Quiet now." : "Quiet.") : otherwise));
  set(gauge, "class", `gauge${alarm ? " alarmed" : ""}${cause ? " cause" : ""}${known ? "" : " past"}`);
  const [much, most] = known ? [value, limit] : [cause?.value ?? 0, cause?.limit ?? 1];
  meter.firstChild.style.width = `${Math.min(100, (100 * AT * much) / most)}%`;
  set(meter, "aria-label", label);
  set(meter, "aria-valuemax", known ? Math.max(limit / AT, value) : 1);
  set(meter, "aria-valuenow", known ? value : 0);
  set(meter, "aria-valuetext", figures || "not known yet");
}

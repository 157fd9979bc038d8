// Alarms, freezes and decisions, newest first.

import { byId, grow, make, say, set } from "./dom.js";
import { clock, decimal, isNumber, moment } from "./format.js";

const TITLES = {
  alarm: "Alarm", calm: "Calm again", freeze: "Frozen", thaw: "Thawed", threshold: "Threshold moved", reset: "Reset",
};

const newItem = () => make("li", {}, make("time"), make("strong"), make("span"));

function words({ event, note }) {
  if (event === "alarm") return note.alarms.map((alarm) => alarm.text).join(" ");
  if (event === "threshold") return note.own ? "Back to the detector file's own." : `Now ${decimal(note.value)}.`;
  if (event === "calm") return "Every reading is well below its limit again.";
  return typeof note.because === "string" ? note.because : "";
}

export function showHappened(view) {
  const items = grow(byId("happened"), view.events.length, newItem);
  view.events.forEach((one, k) => {
    const [time, title, text] = items[k].children;
    const today = view.now - one.at < 43_200;
    say(time, !isNumber(one.at) ? "" : today ? clock(one.at) : moment(one.at, view.now));
    say(title, TITLES[one.event] ?? one.event);
    const said = words(one).replace(/(\w)$/, "$1.");
    const whose = one.source && `${one.source}:`;
    say(text, [whose, said, one.by && `By ${one.by}.`].filter(Boolean).join(" "));
    set(items[k], "data-event", one.event);
  });
  const n = view.events.length;
  say(byId("happened-summary"), n ? "Alarms, freezes and decisions, newest first." : "No alarm, freeze or decision so far.");
}

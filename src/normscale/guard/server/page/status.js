// How the guard is, in one sentence, a shape and a colour; and its figures.

import { byId, say, set } from "./dom.js";
import { NONE, count, decimal, isNumber, moment, rate, rows } from "./format.js";

const SHAPES = {
  waiting: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zm0 3a6 6 0 1 1 0 12 6 6 0 0 1 0-12z", // a ring
  running: "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20zm-1.4 14.6L6 12l1.9-1.9 2.7 2.7 5.5-5.5L18 9.2z", // a disc, ticked
  alarm: "M12 2 23 21H1zM10.8 9v6h2.4V9zm0 7.5v2.2h2.4v-2.2z", // a triangle
  frozen: "M3 3h18v18H3zm5 4v10h2.8V7zm5.2 0v10H16V7z", // a square with pause bars
  static: "M12 1 23 12 12 23 1 12z", // a diamond
};
const ON_DRIFT = { freeze: "On drift it freezes itself.", warn: "On drift it warns and goes on." };

const sum = (counts) => Object.values(counts).reduce((all, n) => all + n, 0);

// What is the case: a state for shape and colour, a title, an explanation.
function describe(view) {
  const n = view.alarms.length;
  const keptOut = view.kept_out ? ` ${rows(view.kept_out)} kept out so far.` : "";
  if (view.mode === "frozen") {
    const since = isNumber(view.frozen_since) ? ` since ${moment(view.frozen_since, view.now)}` : "";
    const because = view.frozen_because ? `${view.frozen_because.replace(/(\w)$/, "$1.")} ` : "";
    const text = `Rows are scored by the detector file's own statistics, not taken in.${keptOut}`;
    return ["frozen", `Frozen${since}`, `${because}${text} ${thaws(view)}`];
  }
  if (view.scored === 0) return ["waiting", "Waiting for the first row", "\u00a0"];
  const { standing, by } = view.streams;
  const live = by === "client" ? "live statistics of each client" : "live statistics";
  const title = `Running on ${view.mode === "static" ? "training statistics" : live}`;
  if (n) {
    const words = view.alarms.map((alarm) => alarm.text).join(" ");
    return ["alarm", `${title}, with ${n === 1 ? "one alarm" : `${n} alarms`}`, words + keptOut];
  }
  const stuck = standing.frozen ? `${count(standing.frozen)} of ${count(sum(standing))} streams frozen by an alarm.` : "";
  if (stuck || standing.alarm) return ["alarm", title, stuck || `${count(standing.alarm)} of ${count(sum(standing))} streams with an alarm.`];
  if (view.mode === "static") return ["static", title, "No alarm. This detector learns nothing from the stream."];
  const probation = view.probation ? ` What the stream teaches is answered in ${rows(view.probation)}.` : "";
  return ["running", title, `No alarm. ${ON_DRIFT[view.on_drift] ?? ""}${probation}${keptOut}`];
}

// When a frozen guard will go on.
function thaws({ thaw }) {
  if (!thaw) return "It stays frozen until someone thaws it.";
  const { calm_rows: calm, needed, to_come: left } = thaw;
  if (!left) return "It thaws with the next row.";
  return `It thaws by itself after ${rows(needed)} well below the limits: ${count(calm)} so far, ${count(left)} to come.`;
}

// What to do now.
function advise(view) {
  const first = view.alarms[0] ?? view.frozen_by?.[0];
  const look = first ? "Look at the latest flagged rows and at the reading that raised the alarm." : "";
  if (view.mode === "frozen") {
    const then = view.thaw ? "Wait until it thaws, or thaw it once the cause is known." : "Thaw it when the cause is gone.";
    return `${look} ${then}`.trim();
  }
  const { standing } = view.streams;
  if (standing.frozen || standing.alarm) return "Look at the sources below. A frozen one is scored by the detector file, and thaws by itself; the others go on.";
  if (first) return `${look} If the stream is wrong, freeze the guard; if it is right, leave it: an alarm ends by itself.`;
  return view.scored ? "Nothing to do." : "";
}

export function showStatus(view) {
  const [state, title, text] = describe(view);
  set(byId("status"), "data-state", state);
  set(byId("status-icon"), "d", SHAPES[state]);
  say(byId("status-title"), title);
  say(byId("status-text"), text);
  say(byId("advice"), advise(view));
  const detector = view.detector_file.split(/[\\/]/).pop();
  say(byId("guard"), detector);
  say(byId("facts"), `${view.detector.replaceAll("_", "-")}, ${view.workers} worker${view.workers === 1 ? "" : "s"}`);
  say(byId("made-by"), `normscale ${view.version}`);
  document.title = `${state === "running" ? "" : `${title.split(": ")[0]} · `}${detector}`;
}

export function showNumbers(view) {
  say(byId("scored"), count(view.scored));
  say(byId("rows"), count(view.rows));
  say(byId("kept-out"), count(view.kept_out));
  say(byId("rows-per-second"), rate(view.throughput.rows));
  say(byId("requests-per-second"), rate(view.throughput.requests));
  const { p50_ms: middle, p99_ms: worst } = view.latency ?? {};
  say(byId("latency"), isNumber(middle) ? `${decimal(middle, 2)} / ${decimal(worst, 2)} ms` : NONE);
}

// The page: every view that arrives goes to every part of it.

import { listenToActions, showActions } from "./actions.js";
import { Classes } from "./classes.js";
import { byId, on, say, set } from "./dom.js";
import { showEmpty } from "./empty.js";
import { showFlagged } from "./flagged.js";
import { showHappened } from "./happened.js";
import { watch } from "./live.js";
import { showReadings } from "./readings.js";
import { showSources } from "./sources.js";
import { showNumbers, showStatus } from "./status.js";
import { Threshold } from "./threshold.js";
import { Timeline } from "./timeline.js";

const parts = [new Timeline(), new Threshold(), new Classes()];
let latest = null;

function draw() {
  if (latest === null) return;
  const view = latest;
  latest = null;
  showEmpty(view);
  showNumbers(view);
  showActions(view);
  showReadings(view);
  showFlagged(view);
  showHappened(view);
  showSources(view);
  for (const part of parts) part.update(view);
}

// A tab in the background only keeps its title; the rest is drawn when someone looks.
function onView(view) {
  showStatus(view);
  if (latest === null) requestAnimationFrame(draw);
  latest = view;
}

function onState(state, sentence) {
  say(byId("connection"), sentence);
  set(document.body, "class", state);
  byId("retry").hidden = state !== "refused";
}

listenToActions();
on(byId("retry"), "click", () => watch(onView, onState));
watch(onView, onState);

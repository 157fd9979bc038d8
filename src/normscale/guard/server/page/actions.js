// What an operator may do to the statistics; each only after a second look.

import { send } from "./api.js";
import { ask } from "./dialog.js";
import { byId, isUsable, on, say, setUsable } from "./dom.js";

const SHOWN = 10_000; // milliseconds that an outcome stays

const ACTIONS = {
  thaw: {
    path: "v1/thaw",
    fits: (view) => view.mode === "frozen",
    title: "Thaw the guard?",
    text: () => "New rows are taken in again.",
    done: "Thawed.",
  },
  freeze: {
    path: "v1/freeze",
    fits: (view) => view.mode === "running",
    title: "Freeze the statistics?",
    text: () => "Rows are scored by the detector file's own statistics and not taken in until the guard is thawed.",
    field: { label: "Reason", value: "by hand" },
    done: "Frozen.",
  },
  reset: {
    path: "v1/reset",
    fits: (view) => view.mode !== "static" && view.rows > 0,
    title: "Reset the statistics?",
    text: () => "The guard goes back to what it learned in training and forgets every row it has taken in.",
    done: "Back to the training statistics.",
  },
};

const buttons = [...document.querySelectorAll("[data-action]")];
let latest = null;
let fading = 0;

export function showActions(view) {
  latest = view;
  for (const button of buttons) {
    const { fits, text } = ACTIONS[button.dataset.action];
    const hide = !fits(view);
    if (hide && button === document.activeElement) byId("status").focus(); // not to the top of the page
    button.parentElement.hidden = hide;
    if (!hide) say(button.nextElementSibling, text(view)); // what it will do, before it is pressed
  }
}

export function listenToActions() {
  for (const button of buttons) on(button, "click", () => isUsable(button) && act(button));
}

async function act(button) {
  const { path, title, text, field, done } = ACTIONS[button.dataset.action];
  const answer = await ask({ title, text: text(latest), yes: button.textContent, field });
  if (answer === null) return;
  setUsable(button, false);
  await send("POST", path, field && { reason: answer }).then(() => note(done), (error) => note(error.message));
  setUsable(button, true);
}

function note(text) {
  say(byId("status-note"), text);
  clearTimeout(fading);
  fading = setTimeout(note, SHOWN, "");
}

// What an operator may do to the statistics; each only after a second look.

import { send } from "./api.js";
import { ask } from "./dialog.js";
import { byId, isUsable, on, say, setUsable } from "./dom.js";
import { rows } from "./format.js";

const SHOWN = 10_000; // milliseconds that an outcome stays

const ACTIONS = {
  thaw: {
    path: "v1/thaw",
    fits: (view) => view.mode === "frozen",
    title: "Thaw the guard?",
    text: () => "New rows are taken into the statistics again. The rows set aside stay there until you decide.",
    done: "Thawed.",
  },
  "take-in": {
    path: "v1/aside/take-in",
    fits: (view) => view.aside > 0 && view.mode !== "static",
    title: "Take the rows in?",
    text: (view) => `${rows(view.aside)} set aside become part of the statistics, as if they had never been held back.`,
    done: "The rows are taken in.",
  },
  discard: {
    path: "v1/aside/discard",
    fits: (view) => view.aside > 0 && view.mode !== "static",
    title: "Discard the rows?",
    text: (view) => `${rows(view.aside)} set aside are dropped for good; the statistics stay as they are.`,
    done: "The rows are discarded.",
  },
  freeze: {
    path: "v1/freeze",
    fits: (view) => view.mode === "running",
    title: "Freeze the statistics?",
    text: () => "Rows are scored by the guard file's own statistics and set aside until the guard is thawed.",
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
    const hide = !ACTIONS[button.dataset.action].fits(view);
    if (hide && button === document.activeElement) byId("status").focus(); // not to the top of the page
    button.hidden = hide;
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

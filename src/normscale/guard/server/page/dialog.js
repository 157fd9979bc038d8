// One question at a time: a confirmation, or a text to be given.

import { byId, say } from "./dom.js";

let last = Promise.resolve();

// Resolves to the text (or true when no field is asked for), or to null when the answer is no.
export function ask(question) {
  last = last.then(() => show(question));
  return last;
}

function show({ title, text, yes, field = null }) {
  const [dialog, form, label] = [byId("dialog"), byId("dialog-form"), byId("dialog-label")];
  const [name, input] = label.children;
  say(byId("dialog-title"), title);
  say(byId("dialog-text"), text);
  say(byId("dialog-yes"), yes);
  label.hidden = field === null;
  if (field) {
    say(name, field.label);
    input.type = field.secret ? "password" : "text";
    input.value = field.value ?? "";
  }
  return new Promise((resolve) => {
    let answer = null;
    const over = new AbortController();
    const options = { signal: over.signal };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer = field ? input.value.trim() || null : true;
      if (answer === null) input.focus();
      else dialog.close();
    }, options);
    byId("dialog-no").addEventListener("click", () => dialog.close(), options);
    dialog.addEventListener("close", () => {
      over.abort();
      input.value = ""; // no secret stays in the page
      resolve(answer);
    }, options);
    dialog.showModal();
    (field ? input : byId("dialog-no")).focus();
    input.select();
  });
}

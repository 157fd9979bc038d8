// Requests to the guard, with the token when it wants one.

import { ask } from "./dialog.js";

const KEY = "normscale-token";
let asking = null;

export const token = () => sessionStorage.getItem(KEY);

export class NoToken extends Error {}
export class Refused extends Error {}

// Two requests refused at once ask once.
function askForToken(sentence) {
  asking ??= ask({
    title: "A token, please",
    text: `${sentence} It stays in this tab and is forgotten when you close it.`,
    yes: "Use it",
    field: { label: "Token", secret: true },
  }).then((given) => {
    asking = null;
    if (given === null) throw new NoToken("A token is needed.");
    sessionStorage.setItem(KEY, given.replace(/[^!-~]/g, "")); // what cannot stand in a header would break every request
  });
  return asking;
}

async function sentenceOf(response) {
  try {
    const { error } = await response.json();
    if (typeof error === "string") return error;
  } catch {
    // not ours: a proxy's page, or nothing at all
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}

// The response, once it is a good one; otherwise Refused with the server's own sentence.
export async function request(path, options = {}) {
  for (;;) {
    const used = token();
    const headers = { ...options.headers };
    if (used) headers.Authorization = `Bearer ${used}`;
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    const sentence = await sentenceOf(response);
    const wantsToken = response.status === 401 || (response.status === 403 && used);
    if (!wantsToken) throw new Refused(sentence);
    if (token() === used) await askForToken(sentence);
  }
}

export async function send(method, path, body = {}) {
  const headers = { "Content-Type": "application/json" };
  return (await request(path, { method, headers, body: JSON.stringify(body) })).json();
}

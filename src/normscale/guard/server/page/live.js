// The stream of views, for as long as the page is open: lost connections are taken up again.

import { NoToken, Refused, request } from "./api.js";
import { events } from "./events.js";

const SILENCE = 25; // seconds; the server says something every ten
const LONGEST = 30; // seconds between two tries

// onView(view); onState(state, sentence) with state one of live, lost, refused.
export async function watch(onView, onState) {
  for (let failures = 0; ; failures += 1) {
    const { views, error } = await follow(onView, onState);
    if (error instanceof NoToken) return onState("refused", error.message);
    const why = error instanceof Refused ? error.message : "Connection lost.";
    onState("lost", `${why} Trying again.`);
    if (views) failures = 0;
    await pause(Math.min(LONGEST, 2 ** failures) * (0.75 + Math.random() / 2));
  }
}

async function follow(onView, onState) {
  const stop = new AbortController();
  let [views, alarm] = [0, 0];
  const listen = () => {
    clearTimeout(alarm);
    alarm = setTimeout(() => stop.abort(), 1000 * SILENCE);
  };
  try {
    const response = await request("v1/live", { signal: stop.signal });
    listen();
    for await (const { type, data } of events(response.body)) {
      listen();
      if (type === "trouble") onState("lost", JSON.parse(data).error);
      if (type !== "view") continue;
      onState("live", "live");
      onView(JSON.parse(data));
      views += 1;
    }
    return { views };
  } catch (error) {
    if (error instanceof SyntaxError) console.error(error); // a damaged view is a bug, not a lost connection
    return { views, error };
  } finally {
    clearTimeout(alarm);
  }
}

// A network that is back ends it early.
function pause(seconds) {
  return new Promise((resolve) => {
    setTimeout(resolve, 1000 * seconds);
    addEventListener("online", resolve, { once: true });
  });
}

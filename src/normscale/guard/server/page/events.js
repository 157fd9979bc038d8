// Server-sent events out of a response's body. (EventSource cannot send a token.)

// Yields {type, data}; a comment, which only says that the server is alive, comes as type "comment".
export async function* events(body) {
  let [type, data, rest] = ["message", [], ""];
  for await (const text of pieces(body)) {
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/); // a final \r may be half of \r\n
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) yield { type, data: data.join("\n") };
        [type, data] = ["message", []];
      } else if (line.startsWith(":")) {
        yield { type: "comment", data: line.slice(1) };
      } else {
        const [field, value] = split(line);
        if (field === "event") type = value;
        if (field === "data") data.push(value);
      }
    }
  }
}

function split(line) {
  const colon = line.indexOf(":");
  return colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
}

// Safari's streams cannot be iterated over yet.
async function* pieces(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

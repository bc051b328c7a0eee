// Talking to the server: its models, and answers as they are written.

/** What the server, or the way to it, had to say. `status`: of the answer, 0 if there was none. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function stored(storage) {
  try {
    return storage.getItem("lcspec.key") ?? "";
  } catch {
    return "";
  }
}

let key = stored(sessionStorage) || stored(localStorage);

/** Use a key from now on; `keep`: also after the browser was closed. */
export function setKey(value, keep) {
  key = value.trim();
  try {
    localStorage.removeItem("lcspec.key");
    sessionStorage.removeItem("lcspec.key");
    if (key) (keep ? localStorage : sessionStorage).setItem("lcspec.key", key);
  } catch {
    // No storage: it is known until the page is closed.
  }
}

async function ask(path, options = {}) {
  // A header takes ASCII alone, and the server's keys are.
  const safe = /^[\x20-\x7e]+$/.test(key) ? key : "";
  const headers = { ...options.headers, ...(safe ? { Authorization: `Bearer ${safe}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached: is it still running?");
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Something between here and the server answered: its status has to do.
  }
  const wait = response.headers.get("retry-after");
  if (response.status === 429 && wait) message += ` (in ${wait} s)`;
  throw new Problem(message, response.status);
}

/** The models: [{id, meta}, ...]. */
export async function models() {
  return (await (await ask("v1/models")).json()).data;
}

/** The chunks of an answer, as the server sends them. */
export async function* answer(body, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      break;
    }
    if (part.done) break;
    held += decoder.decode(part.value, { stream: true });
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment: nothing to say yet
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Problem(chunk.error.message, 500);
      yield chunk;
    }
  }
  throw new Problem("The connection was lost before the answer had ended.");
}

/** Requests to the server that the page comes from. Addresses are relative, so that a proxy may put it under a path. */

import { session } from "./store.js";

const KEY = "arcforge.key";

/** What the server, or the way to it, had against a request. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param });
  }

  get needsKey() {
    return this.status === 401;
  }
}

/** The API key is stored for this tab only: a key that is kept longer is easier to steal. */
export const apiKey = {
  get: () => session.getItem(KEY) ?? "",
  set: (key) => (key ? session.setItem(KEY, key) : session.removeItem(KEY)),
};

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (apiKey.get()) headers.Authorization = `Bearer ${apiKey.get()}`;
  const options = { headers, signal, ...(body ? { method: "POST", body: JSON.stringify(body) } : {}) };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  const said = (await response.json().catch(() => null))?.error ?? {};
  return new ApiError(said.message ?? `The server answered with status ${status}.`, { ...said, status });
}

export async function getJson(path) {
  return (await ask(path)).json();
}

export async function postJson(path, body) {
  return (await ask(path, body)).json();
}

/** Posts a request and yields the objects of the stream that answers it. */
export async function* stream(path, body, signal) {
  const response = await ask(path, { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError("The connection ended before the answer did.");
      for (const data of events.push(value)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(chunk.error.message, chunk.error);
        yield chunk;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("The connection to the server was lost.");
  } finally {
    reader.cancel().catch(() => null); // of a stream that failed already: there is nothing left to cancel
  }
}

/** Server-sent events out of pieces of any size. */
export class EventReader {
  #rest = "";
  #data = [];

  /** Takes the next piece and returns the data of the events that it completes. */
  push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    const found = [];
    for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) this.#data.push(line.slice(5).replace(/^ /, ""));
      if (line === "" && this.#data.length) {
        found.push(this.#data.join("\n"));
        this.#data = [];
      }
    }
    return found;
  }
}

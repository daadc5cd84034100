/** State stored in this browser: settings, and conversations, one entry each so that tabs do not overwrite one another's. */

const PREFIX = "arcforge.conversation.";
const SETTINGS = "arcforge.settings";
const THEME = "arcforge.theme";

export const DEFAULTS = {
  system: "",
  tools: "",
  thinking: "on",
  sampling: {},
  playground: { max_tokens: 128 },
};

/** Keeps things until the page is left, where the browser lets it keep nothing longer. */
class Memory {
  #entries = new Map();
  getItem = (key) => this.#entries.get(key) ?? null;
  setItem = (key, value) => this.#entries.set(key, String(value));
  removeItem = (key) => this.#entries.delete(key);
  key = (n) => [...this.#entries.keys()][n];
  get length() {
    return this.#entries.size;
  }
}

function storage(name) {
  try {
    return window[name];
  } catch {
    return new Memory(); // cookies are blocked, and this with them
  }
}

export const local = storage("localStorage");
export const session = storage("sessionStorage");

function read(key) {
  try {
    return JSON.parse(local.getItem(key));
  } catch {
    return null; // written by something else
  }
}

/** Writes an entry; says whether there was room. */
function write(key, value) {
  try {
    local.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export const settings = {
  load: () => ({ ...structuredClone(DEFAULTS), ...read(SETTINGS) }),
  save: (value) => write(SETTINGS, value),
};

export const theme = {
  load: () => read(THEME) ?? "auto",
  save: (value) => write(THEME, value),
};

export const conversations = {
  /** Returns all, the latest first. */
  all() {
    const keys = Array.from({ length: local.length }, (_, n) => local.key(n)).filter((key) => key.startsWith(PREFIX));
    const found = keys.map(read).filter((each) => each?.version === 1 && each.nodes);
    return found.sort((a, b) => b.updated - a.updated);
  },
  save: (conversation) => write(PREFIX + conversation.id, conversation),
  remove: (id) => local.removeItem(PREFIX + id),
  /** Calls back when another tab has changed something. */
  watch: (callback) => addEventListener("storage", (event) => event.key?.startsWith(PREFIX) && callback()),
};

// Conversations in the browser's storage (IndexedDB), settings in localStorage. Where there is none (private windows of
// some browsers) everything works until the page is closed.

const NAME = "lcspec";
const TABLE = "conversations";

function promised(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export class Store {
  /** Opens the storage; `lasting` says whether there is one. */
  static async open() {
    const store = new Store();
    store.memory = new Map();
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
      store.base = await promised(request);
    } catch {
      store.base = null;
    }
    return store;
  }

  get lasting() {
    return this.base !== null;
  }

  /** All conversations, the latest first. */
  async all() {
    const found = this.base ? await promised(this.table("readonly").getAll()) : [...this.memory.values()];
    return found.sort((a, b) => b.changed - a.changed);
  }

  /** Keeps a conversation. Throws where there is no room. */
  async put(conversation) {
    const copy = structuredClone(conversation);
    if (!this.base) this.memory.set(copy.id, copy);
    else {
      // Only a transaction that is complete is on the disk: it may still fail where there is no room.
      const table = this.table("readwrite");
      table.put(copy);
      await new Promise((resolve, reject) => {
        table.transaction.oncomplete = resolve;
        table.transaction.onabort = () => reject(table.transaction.error);
      });
    }
  }

  async remove(id) {
    if (!this.base) this.memory.delete(id);
    else await promised(this.table("readwrite").delete(id));
  }

  table(mode) {
    return this.base.transaction(TABLE, mode).objectStore(TABLE);
  }
}

/** The settings that were saved last. */
export function loadSettings() {
  try {
    const found = JSON.parse(localStorage.getItem("lcspec.settings") ?? "{}");
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

export function saveSettings(settings) {
  try {
    localStorage.setItem("lcspec.settings", JSON.stringify(settings));
  } catch {
    // They hold until the page is closed.
  }
}

/** A conversation that has not begun. */
export function fresh(system = "") {
  const now = Date.now();
  const random = crypto.getRandomValues(new Uint32Array(3));
  const id = `${now.toString(36)}-${[...random].map((n) => n.toString(36)).join("")}`;
  return { id, title: "", system, created: now, changed: now, messages: [] };
}

/** A version of an answer that has not begun. A run is [length, drafter]. */
export function emptyVersion(model) {
  return { text: "", runs: [], reasoning: "", reasoningRuns: [], seconds: 0, model, reason: "", error: "", timings: null };
}

/** The version of an answer that is shown. */
export function shown(message) {
  return message.versions[message.at];
}

/** The whole conversation as Markdown. */
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.system) parts.push(`## System\n\n${conversation.system}`);
  for (const message of conversation.messages) {
    parts.push(message.role === "user" ? `## You\n\n${message.text}` : `## Model\n\n${shown(message).text}`);
  }
  return parts.join("\n\n") + "\n";
}

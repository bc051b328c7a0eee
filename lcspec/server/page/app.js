// The page: which conversation is open, what is being answered, and what buttons and keys do.

import { answer, models, setKey } from "./api.js";
import { AnswerNode, make, userNode } from "./message.js";
import { Store, asMarkdown, emptyVersion, fresh, loadSettings, saveSettings, shown } from "./store.js";

const $ = (id) => document.getElementById(id);
const SAVE_MS = 1000; // while an answer is written
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];

const store = await Store.open();
let settings = loadSettings();
let known = []; // all conversations
let current = fresh(settings.system);
let nodes = []; // of the messages on the page
let running = null; // {conversation, message, version, controller} of the answer that is being written
let contexts = new Map(); // tokens that a model's context holds
let follow = true; // the end of the conversation is kept in view
let dirty = false; // the page shows less than has come

// ---------------------------------------------------------------- storage

async function save(conversation) {
  conversation.changed = Date.now();
  if (!known.includes(conversation)) known.unshift(conversation);
  try {
    await store.put(conversation);
  } catch (error) {
    toast(`This could not be kept in the browser's storage (${error.name}): delete what you no longer need.`);
  }
  known.sort((a, b) => b.changed - a.changed);
  showList();
}

async function remove(conversation) {
  if (running?.conversation === conversation) running.controller.abort();
  known = known.filter((c) => c !== conversation);
  await store.remove(conversation.id);
  if (current === conversation) open(fresh(settings.system));
  showList();
  toast(`“${conversation.title || "Conversation"}” is deleted.`, "Undo", async () => {
    const { changed } = conversation;
    await save(conversation);
    conversation.changed = changed;
    open(conversation);
  });
}

// ---------------------------------------------------------------- what is seen

function showList() {
  const wanted = $("search").value.trim().toLowerCase();
  const fits = (c) => !wanted || [c.title, ...c.messages.map((m) => m.text ?? shown(m).text)].some((t) => t.toLowerCase().includes(wanted));
  const focused = document.activeElement?.closest?.("#list li")?.dataset.id;
  $("list").replaceChildren(
    ...known.filter(fits).map((c) => {
      const name = make("button", "name", c.title || "Conversation");
      const shut = make("button", "quiet delete", "✕");
      shut.setAttribute("aria-label", `Delete ${c.title || "conversation"}`);
      const item = make("li", c === current ? "open" : "", name, shut);
      if (c === current) name.setAttribute("aria-current", "true");
      item.dataset.id = c.id;
      name.onclick = () => {
        open(c);
        drawer(false);
        $("input").focus();
      };
      shut.onclick = () => remove(c);
      return item;
    }),
  );
  if (focused) $("list").querySelector(`[data-id="${CSS.escape(focused)}"] .name`)?.focus();
}

function open(conversation) {
  current = conversation;
  $("title").value = conversation.title;
  document.title = conversation.title ? `${conversation.title} · lcspec` : "lcspec";
  nodes = conversation.messages.map((m) => (m.role === "user" ? { message: m, node: userNode(m) } : new AnswerNode(m)));
  $("messages").replaceChildren(...nodes.map((n) => n.node));
  follow = true;
  showAll();
  showList();
}

function showAll() {
  const last = current.messages.at(-1);
  for (const n of nodes) n.update?.(settings.lens, running?.message === n.message, n.message === last);
  $("empty").hidden = nodes.length > 0;
  const busy = running !== null;
  $("send").textContent = busy ? "Stop" : "Send";
  $("send").classList.toggle("stop", busy);
  $("lens").setAttribute("aria-pressed", String(Boolean(settings.lens)));
  scroll();
}

/** What has come since the last frame. */
function showRunning() {
  if (dirty) return;
  dirty = true;
  requestAnimationFrame(() => {
    dirty = false;
    if (!running || running.conversation !== current) return;
    nodes.at(-1)?.update?.(settings.lens, true, true);
    scroll();
  });
}

function scroll() {
  const log = $("log");
  if (follow) log.scrollTop = log.scrollHeight;
  $("down").hidden = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

let toastTimer = 0;
function toast(text, doing = "", action = null) {
  clearTimeout(toastTimer);
  $("toast-text").textContent = text;
  $("toast-do").hidden = !action;
  $("toast-do").textContent = doing;
  $("toast-do").onclick = () => {
    $("toast").hidden = true;
    action();
  };
  $("toast").hidden = false;
  toastTimer = setTimeout(() => ($("toast").hidden = true), 8000);
}

function drawer(wanted) {
  document.body.classList.toggle("drawer", wanted);
  $("open-side").setAttribute("aria-expanded", String(wanted));
  if (wanted) $("search").focus();
}

// ---------------------------------------------------------------- asking

/** The request for an answer that follows `messages`. `turn`: how many versions there are already. */
function request(conversation, messages, turn) {
  const body = { model: $("model").value || undefined, messages: [] };
  if (conversation.system.trim()) body.messages.push({ role: "system", content: conversation.system });
  for (const m of messages) {
    body.messages.push({ role: m.role, content: m.role === "user" ? m.text : shown(m).text });
  }
  for (const name of NUMBERS) {
    const value = settings[name];
    if (value !== undefined && value !== "") body[name] = Number(value);
  }
  // A seed gives one text: another version takes another seed.
  if (body.seed !== undefined) body.seed += turn;
  if (settings.thinking) body.enable_thinking = settings.thinking === "on";
  body.speculation = { name_drafters: true, ...(settings.speculate === "off" ? { off: true } : {}) };
  return body;
}

function grow(runs, length, drafter) {
  const last = runs.at(-1);
  if (last && last[1] === drafter) last[0] += length;
  else runs.push([length, drafter]);
}

/** Write into the last message of `conversation`: a new version, or on with the one that is there. */
async function write(conversation, on = false) {
  const message = conversation.messages.at(-1);
  const before = conversation.messages.slice(0, on ? undefined : -1);
  const version = on ? shown(message) : emptyVersion($("model").value);
  const body = request(conversation, before, message.versions.length);
  if (!on) message.at = message.versions.push(version) - 1;
  Object.assign(version, { error: "", reason: "" });
  const controller = new AbortController();
  running = { conversation, message, version, controller };
  follow = true;
  showAll();
  $("status").textContent = "Waiting for the first word …";
  const start = performance.now();
  let saved = start;
  try {
    for await (const chunk of answer(body, controller.signal)) {
      const choice = chunk.choices[0];
      const { content, reasoning_content: thought } = choice?.delta ?? {};
      if (thought) {
        version.reasoning += thought;
        grow(version.reasoningRuns, thought.length, choice.drafter ?? null);
        version.seconds = (performance.now() - start) / 1000;
      }
      if (content) {
        version.text += content;
        grow(version.runs, content.length, choice.drafter ?? null);
      }
      if (content || thought) {
        if ($("status").textContent !== "Answering …") $("status").textContent = "Answering …";
        showRunning();
      }
      if (choice?.finish_reason) version.reason = choice.finish_reason;
      if (chunk.timings) version.timings = chunk.timings;
      if (chunk.usage) version.used = chunk.usage.total_tokens;
      if (performance.now() - saved > SAVE_MS) {
        saved = performance.now();
        save(conversation);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") version.reason = "stopped";
    else {
      version.error = error.message;
      version.reason ||= "error";
      if (error.status === 401) askKey("The server did not take the key. Whoever started it knows one.");
    }
  }
  running = null;
  await save(conversation);
  showAll();
  const left = contexts.get(version.model);
  const full = version.used && left ? ` · context ${Math.round((100 * version.used) / left)} % full` : "";
  const end = { stop: "The answer is complete", length: "The answer was cut at the limit", stopped: "Stopped" };
  $("status").textContent = `${version.error ? "The answer failed" : end[version.reason] ?? "Done"}${full}`;
}

function send() {
  const text = $("input").value;
  if (running) return;
  if (!text.trim()) return;
  $("input").value = "";
  fit();
  const conversation = current;
  conversation.messages.push({ role: "user", text }, { role: "assistant", versions: [], at: 0 });
  if (!conversation.title) conversation.title = text.trim().split("\n")[0].slice(0, 60);
  begin(conversation);
}

function begin(conversation, on = false) {
  const done = write(conversation, on);
  open(conversation);
  return done;
}

function stop() {
  running?.controller.abort();
}

function again() {
  if (running || current.messages.at(-1)?.role !== "assistant") return;
  begin(current);
}

const ACTIONS = {
  copy: (message) => copy(message.role === "user" ? message.text : shown(message).text),
  again,
  continue: () => running || begin(current, true),
  back: (message) => turn(message, -1),
  on: (message) => turn(message, 1),
  edit: (message) => {
    // What was said stays: the changed message begins another conversation.
    const at = current.messages.indexOf(message);
    const other = { ...fresh(current.system), messages: structuredClone(current.messages.slice(0, at)) };
    if (at > 0) other.title = current.title;
    open(other);
    $("input").value = message.text;
    fit();
    $("input").focus();
  },
};

function turn(message, step) {
  if (running?.message === message) return;
  message.at += step;
  save(current);
  showAll();
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers have no clipboard for pages that came over plain HTTP from elsewhere; this still works there.
    const area = make("textarea", "hidden-label");
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) return toast("The browser does not let this page copy.");
  }
  toast("Copied.");
}

// ---------------------------------------------------------------- dialogs

function openSettings() {
  const form = $("settings-form");
  for (const field of form.elements) if (field.name) field.value = settings[field.name] ?? "";
  form.elements.system.value = current.system;
  $("settings-dialog").showModal();
}

$("settings-form").onsubmit = () => {
  const form = $("settings-form");
  const found = { lens: settings.lens, model: settings.model };
  for (const field of form.elements) if (field.name && field.value !== "") found[field.name] = field.value;
  settings = found;
  saveSettings(settings);
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
  else delete document.documentElement.dataset.theme;
  const system = form.elements.system.value;
  if (system !== current.system) {
    current.system = system;
    if (current.messages.length) save(current);
  }
};
$("settings-cancel").onclick = () => $("settings-dialog").close();
$("change-key").onclick = () => {
  $("settings-dialog").close();
  askKey("The key that is sent with every request.");
};
$("export").onclick = () => {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([asMarkdown(current)], { type: "text/markdown" }));
  link.download = `${(current.title || "conversation").replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "conversation"}.md`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

function askKey(text) {
  if ($("key-dialog").open) return;
  $("key-text").textContent = text;
  $("key").value = "";
  $("key-dialog").showModal();
}

$("key-form").onsubmit = () => {
  setKey($("key").value, $("keep-key").checked);
  loadModels();
};

async function loadModels() {
  try {
    const found = await models();
    contexts = new Map(found.map((m) => [m.id, m.meta?.n_ctx]));
    $("model").replaceChildren(...found.map((m) => new Option(m.id, m.id)));
    if (contexts.has(settings.model)) $("model").value = settings.model;
    $("status").textContent = "";
  } catch (error) {
    if (error.status === 401) askKey("This server asks for a key. Whoever started it knows one.");
    else $("status").textContent = error.message;
  }
}

// ---------------------------------------------------------------- keys and buttons

function fit() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, innerHeight * 0.4)}px`;
}

function startNew() {
  open(fresh(settings.system));
  drawer(false);
  $("input").focus();
}

function toggleLens() {
  settings.lens = !settings.lens;
  saveSettings(settings);
  showAll();
}

$("composer").onsubmit = (event) => {
  event.preventDefault();
  if (running) stop();
  else send();
};
$("input").oninput = fit;
$("input").onkeydown = (event) => {
  // While an input method composes a word, Enter belongs to it.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
    event.preventDefault();
    send();
  }
};
$("new").onclick = startNew;
$("lens").onclick = toggleLens;
$("settings").onclick = openSettings;
$("open-side").onclick = () => drawer(true);
$("close-side").onclick = $("shade").onclick = () => {
  drawer(false);
  $("open-side").focus();
};
$("search").oninput = showList;
$("title").onchange = () => {
  current.title = $("title").value.trim();
  if (current.messages.length) save(current);
};
$("model").onchange = () => {
  settings.model = $("model").value;
  saveSettings(settings);
};
$("down").onclick = () => {
  follow = true;
  scroll();
};
$("log").onscroll = () => {
  const log = $("log");
  follow = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  $("down").hidden = follow;
};
new ResizeObserver(scroll).observe($("log"));
$("messages").onclick = (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("copy-code")) return copy(button.closest(".code").querySelector("pre").textContent);
  const owner = nodes.find((n) => n.node.contains(button));
  if (owner && button.dataset.action) ACTIONS[button.dataset.action](owner.message);
};
document.onkeydown = (event) => {
  if (document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  const alt = event.altKey && !event.ctrlKey && !event.metaKey;
  const keys = { KeyN: startNew, KeyL: toggleLens, KeyR: again, KeyS: openSettings };
  if (event.key === "Escape") {
    if (document.body.classList.contains("drawer")) drawer(false);
    else stop();
  } else if (alt && keys[event.code]) {
    event.preventDefault();
    keys[event.code]();
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    $("input").focus();
  }
};
document.onvisibilitychange = async () => {
  // Another tab may have changed the conversations.
  if (document.hidden) {
    if (running) save(running.conversation);
  } else if (!running && store.lasting) {
    const found = await store.all();
    const same = found.find((c) => c.id === current.id);
    known = found.map((c) => (c === same && c.changed <= current.changed ? current : c));
    if (same && same.changed > current.changed) open(same);
    else showList();
  }
};

known = await store.all();
if (!store.lasting) $("storage").textContent = "This browser keeps nothing: conversations are gone with the page.";
open(current);
await loadModels();
if (!document.querySelector("dialog[open]")) $("input").focus();

// A message on the page.

import { Tint, tintClass } from "./inline.js";
import { Document } from "./markdown.js";
import { shown } from "./store.js";

/** An element with a class and children. */
export function make(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function button(text, action, label = "") {
  const made = make("button", "quiet", text);
  made.type = "button";
  made.dataset.action = action;
  if (label) {
    made.title = label;
    made.setAttribute("aria-label", label);
  }
  return made;
}

/** What the user wrote: as it was written. */
export function userNode(message) {
  const tools = make("div", "tools", button("Copy", "copy"), button("Edit", "edit", "Edit, in a new conversation"));
  return make("article", "message user", make("h2", "hidden-label", "You"), make("div", "body plain", message.text), tools);
}

/** An answer: its folded reasoning, its text, what became of it. */
export class AnswerNode {
  constructor(message) {
    this.message = message;
    this.thought = make("div", "body");
    this.summary = make("summary", "", "Reasoning");
    this.details = make("details", "reasoning", this.summary, this.thought);
    this.body = make("div", "body");
    this.error = make("p", "error");
    this.error.setAttribute("role", "alert");
    this.facts = make("p", "small facts");
    this.tools = make("div", "tools");
    this.node = make("article", "message answer", make("h2", "hidden-label", "Answer"), this.details, this.body);
    this.node.append(this.error, this.facts, this.tools);
    this.text = new Document(this.body);
    this.thinking = new Document(this.thought);
  }

  /** Show it as it is now; `busy`: it is being written; `last`: nothing follows it. */
  update(lens, busy, last) {
    const version = shown(this.message);
    if (version !== this.version) {
      this.text.clear();
      this.thinking.clear();
      this.version = version;
    }
    this.text.update(version.text, lens ? new Tint(version.runs) : null);
    this.details.hidden = !version.reasoning;
    if (version.reasoning) {
      this.thinking.update(version.reasoning, lens ? new Tint(version.reasoningRuns) : null);
      const now = busy && !version.text;
      const time = version.seconds ? ` for ${version.seconds.toFixed(version.seconds < 10 ? 1 : 0)} s` : "";
      this.summary.textContent = now ? "Reasoning …" : `Reasoned${time}`;
      // An answer that never left its reasoning would look empty.
      if (!busy && !version.text && !this.opened) this.details.open = this.opened = true;
    }
    this.node.classList.toggle("busy", busy);
    this.error.textContent = version.error;
    this.error.hidden = !version.error;
    if (busy) {
      this.facts.replaceChildren();
      this.tools.replaceChildren();
    } else this.finish(version, lens, last);
  }

  finish(version, lens, last) {
    const { message } = this;
    this.facts.replaceChildren(...facts(version, lens));
    const tools = [];
    if (version.text) tools.push(button("Copy", "copy"));
    if (last) {
      tools.push(button("Again", "again", "Answer again (Alt+R)"));
      if (version.text && version.reason !== "stop") tools.push(button("Continue", "continue", "Go on where it was cut"));
    }
    if (message.versions.length > 1) {
      const place = make("span", "small", `${message.at + 1} of ${message.versions.length}`);
      const [back, on] = [button("‹", "back", "The version before"), button("›", "on", "The next version")];
      back.disabled = message.at === 0;
      on.disabled = message.at === message.versions.length - 1;
      tools.push(back, place, on);
    }
    this.tools.replaceChildren(...tools);
  }
}

/** How an answer was made: a line, and with the lens what its colours mean. */
function facts(version, lens) {
  const { timings, reason } = version;
  const parts = [];
  if (reason === "length") parts.push("cut at the limit");
  else if (reason === "stopped") parts.push("stopped");
  if (timings) {
    parts.push(`${timings.predicted_n} tokens`);
    if (timings.predicted_per_second) parts.push(`${timings.predicted_per_second.toFixed(1)} a second`);
    if (timings.draft_n) {
      parts.push(`${timings.draft_n_accepted} of ${timings.draft_n} guesses right`);
      parts.push(`${timings.mean_acceptance_length.toFixed(2)} tokens a step`);
    }
    if (!timings.lossless) parts.push("lossy");
  }
  if (version.model) parts.push(version.model);
  const out = [parts.join(" · ")];
  if (lens) out.push(legend(version));
  return out;
}

function legend(version) {
  const names = new Set([...version.runs, ...version.reasoningRuns].map(([, name]) => name).filter(Boolean));
  const chips = [...names].sort().map((name) => make("span", `drafted ${tintClass(name)}`, name));
  return make("span", "legend", ...chips.flatMap((chip) => [chip, " "]), "plain: the model's own");
}

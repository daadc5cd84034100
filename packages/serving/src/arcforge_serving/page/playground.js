/** Completion: a text that the model continues, with the probability of each token. */
import { stream } from "./api.js";
import { Clock } from "./chat.js";
import { announce, byId, copyButton, h, icon, iconButton } from "./dom.js";
import { session } from "./store.js";

const TOP = 5;
const BEGINNINGS = ["def add(", "import os\n", "class Stack:\n", "# Reads a file\n"];
const KEPT = "arcforge.text";

export class Playground {
  #app;
  #base = "";
  #added = "";
  #control = null;
  #area = h("textarea", { id: "text", spellcheck: "false", "aria-label": "Text to continue", placeholder: "Write the beginning of a text" });
  #shown = h("div", { class: "under", "aria-hidden": "true" });
  #note = h("span", { class: "stats", role: "status" });
  #problem = h("div", { class: "error", role: "alert", hidden: true });
  #tokens = h("div", { class: "tokens", role: "list", "aria-label": "Tokens of the continuation", hidden: true });
  #go = h("button", { type: "button", class: "primary", onclick: () => this.#toggle() });
  #undo = iconButton("undo", "Take the continuation back", () => this.#set(this.#base, ""));
  #again = iconButton("redo", "Another continuation", () => this.run(this.#base));
  #likely = h("input", { type: "checkbox", id: "likely" });

  constructor(app) {
    this.#app = app;
    this.#area.addEventListener("input", () => this.#set(this.#area.value, ""));
    this.#area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.run(this.#area.value);
      }
    });
    const copy = copyButton("Copy the text", () => this.#area.value);
    const likely = h("label", { class: "check" }, this.#likely, "Show how likely tokens are");
    byId("playground").replaceChildren(
      h("div", { class: "page" },
        h("p", { class: "note", id: "why" }),
        h("div", { class: "suggestions left", id: "beginnings", role: "group", "aria-label": "Beginnings to try" }),
        h("div", { class: "sheet" }, this.#shown, this.#area),
        this.#problem,
        h("div", { class: "toolbar" }, this.#go, this.#undo, this.#again, copy, likely, h("span", { class: "spring" }), this.#note),
        this.#tokens),
    );
    this.#set(session.getItem(KEPT) ?? "", "");
  }

  /** Shows the page; says why there is no chat where there is none. */
  show() {
    const { chat, name, base, no_chat: reason, suggestions } = this.#app.model;
    byId("why").hidden = chat && !base;
    byId("why").textContent = chat
      ? `${name} is a base model: it continues texts, and was not trained to answer.`
      : `${name} has no chat template (${reason}), so it continues texts.`;
    const begin = (text) => h("button", { type: "button", class: "chip mono", onclick: () => this.run(text) }, text.trim());
    byId("beginnings").replaceChildren(...(base && suggestions?.length ? suggestions : BEGINNINGS).map(begin));
    byId("beginnings").hidden = chat && !base;
  }

  get running() {
    return this.#control !== null;
  }

  stop() {
    this.#control?.abort();
  }

  focus() {
    this.#area.focus();
  }

  #toggle() {
    if (this.running) this.stop();
    else this.run(this.#area.value);
  }

  #set(base, added) {
    [this.#base, this.#added] = [base, added];
    if (this.#area.value !== base + added) this.#area.value = base + added;
    this.#shown.replaceChildren(base, h("mark", {}, added), "\n");
    const label = this.running ? "Stop" : "Continue";
    if (this.#go.textContent !== label) this.#go.replaceChildren(icon(this.running ? "stop" : "right"), label);
    this.#area.readOnly = this.running;
    this.#undo.disabled = this.#again.disabled = this.running || added === "";
    session.setItem(KEPT, base);
  }

  /** Continues a text. */
  async run(text) {
    if (this.running) return;
    const likely = this.#likely.checked;
    const clock = new Clock();
    this.#control = new AbortController();
    this.#problem.hidden = true;
    this.#note.textContent = "";
    this.#tokens.replaceChildren();
    this.#tokens.hidden = !likely;
    this.#set(text, "");
    announce("The continuation begins");
    const body = { prompt: text, ...this.#app.conversation.settings.playground, ...(likely ? { logprobs: TOP } : {}) };
    try {
      for await (const { usage, choices } of stream("v1/completions", body, this.#control.signal)) {
        if (usage) clock.usage = usage;
        if (choices[0]?.text) clock.tick(false);
        if (choices[0]) this.#take(choices[0]);
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        this.#problem.textContent = error.message;
        this.#problem.hidden = false;
        if (error.needsKey) this.#app.openSettings("key");
      }
    }
    this.#control = null;
    this.#set(this.#base, this.#added);
    const { tokens, rate, about } = clock.stats() ?? {};
    const count = `${about ? "about " : ""}${tokens} tokens${rate ? ` · ${rate.toFixed(1)} tokens/s` : ""}`;
    const nothing = this.#problem.hidden ? "The model ends the text here." : "";
    this.#note.textContent = tokens === undefined ? nothing : count;
    announce("The continuation is complete");
  }

  #take({ text, logprobs }) {
    this.#set(this.#base, this.#added + text);
    (logprobs?.tokens ?? []).forEach((token, n) => {
      const chance = Math.exp(logprobs.token_logprobs[n] ?? 0);
      this.#tokens.append(chip(token, chance, logprobs.top_logprobs?.[n] ?? {}));
    });
  }
}

const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

/** A token, coloured by how likely it was; its tip has what else was likely. */
function chip(token, chance, top) {
  const others = Object.entries(top).map(([each, logprob]) => `${percent(Math.exp(logprob))}  ${JSON.stringify(each)}`);
  const level = chance > 0.8 ? 4 : chance > 0.5 ? 3 : chance > 0.2 ? 2 : chance > 0.05 ? 1 : 0;
  const label = `${JSON.stringify(token)}, ${percent(chance)}`;
  const shown = token.replaceAll("\n", "↵") || "∅";
  return h("span", { role: "listitem", tabindex: "0", class: `token level-${level}`, title: others.join("\n"), "aria-label": label }, shown);
}

/** The chat: shows a conversation, asks for answers, and takes them in while they come. */
import { apiKey, stream } from "./api.js";
import { answer, answers, DEFINITION } from "./calculator.js";
import { announce, byId, h } from "./dom.js";
import { Lesson } from "./lesson.js";
import { messageView } from "./message.js";
import { parseTools } from "./sampling.js";
import { add, messagesOf, openCalls, path, show, siblings } from "./tree.js";

const THINKING = {
  on: { type: "enabled" },
  preserved: { type: "enabled", clear_thinking: false },
  off: { type: "disabled" },
};
const NEAR = 48;
/** Pixels from the end within which the page keeps following an answer. */
const MOST_CALLS = 8;
/** Answers in a row whose calls the page answers by itself. */
const SUGGESTIONS = ["What is 17 + 25?", "Explain in two sentences what a hash table is.", "Write a short poem about the sea."];

export class Chat {
  #app;
  #views = new Map();
  #lesson;
  #runs = new Map();
  #follows = true;
  #frame = 0;
  #cost = 0;
  #left = false;

  /** `app` has the model, the present conversation, and ways to save it and to show other parts of the page. */
  constructor(app) {
    this.#app = app;
    this.#lesson = new Lesson(() => app.toast("The model has learned: ask it again."));
    const scroll = byId("scroll");
    scroll.addEventListener("scroll", () => this.#follow(scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR));
    byId("jump").addEventListener("click", () => this.#toEnd());
  }

  get #conversation() {
    return this.#app.conversation;
  }

  /** Whether an answer is being written in the conversation that is shown. */
  get running() {
    return this.#runs.has(this.#conversation.id);
  }

  isRunning(id) {
    return this.#runs.has(id);
  }

  /** Ends all answers, because the page is left; returns their conversations. */
  leave() {
    this.#left = true;
    const runs = [...this.#runs.values()];
    for (const { control } of runs) control.abort();
    return runs.map((run) => run.conversation);
  }

  /** Returns the conversation if an answer is being written in it: the stored one is older. */
  runningOne(id) {
    return this.#runs.get(id)?.conversation;
  }

  // ---- showing ----------------------------------------------------------------------------------------------------

  /** Shows the present conversation. */
  show() {
    const nodes = path(this.#conversation);
    const views = new Map(nodes.map((node) => [node.id, this.#views.get(node.id) ?? messageView(node, this.#actions)]));
    this.#views = views;
    byId("messages").replaceChildren(...[...views.values()].map((view) => view.element));
    for (const view of views.values()) view.update();
    const welcome = byId("welcome");
    welcome.replaceChildren(...(nodes.length ? [] : this.#welcome()));
    byId("chat").classList.toggle("empty", nodes.length === 0);
    this.#app.changed();
    this.#toEnd();
  }

  /** Rebuilds all views. */
  reset() {
    this.#views = new Map();
    this.show();
  }

  #welcome() {
    const ask = (text) => h("button", { type: "button", class: "chip", onclick: () => this.send(text) }, text);
    const { suggestions, lesson } = this.#app.model;
    if (lesson) this.#lesson.show();
    return [
      h("h2", {}, "What would you like to know?"),
      h("div", { class: "suggestions" }, (suggestions?.length ? suggestions : SUGGESTIONS).map(ask)),
      ...(lesson ? [this.#lesson.element] : []),
    ];
  }

  #follow(follows) {
    this.#follows = follows;
    byId("jump").hidden = follows;
  }

  #toEnd() {
    const scroll = byId("scroll");
    scroll.scrollTop = scroll.scrollHeight;
    this.#follow(true);
  }

  /** Brings an answer up to date with the next frame, and less often where that takes long. */
  #refresh(node) {
    if (this.#frame || !this.#views.has(node.id)) return;
    const draw = () => {
      this.#frame = 0;
      const began = performance.now();
      this.#views.get(node.id)?.update();
      if (this.#follows && this.#views.has(node.id)) this.#toEnd();
      this.#cost = performance.now() - began;
    };
    this.#frame = this.#cost > 8 ? setTimeout(draw, 4 * this.#cost) : requestAnimationFrame(draw);
  }

  // ---- what people do ---------------------------------------------------------------------------------------------

  #actions = {
    place: (node) => {
      const all = siblings(this.#conversation, node);
      return [all.indexOf(node) + 1, all.length];
    },
    turn: (node, by) => {
      const all = siblings(this.#conversation, node);
      show(this.#conversation, all[all.indexOf(node) + by]);
      this.#save();
      this.reset();
    },
    isOpen: (node) => this.#conversation.leaf === node.id && openCalls(this.#conversation).length > 0,
    again: (node) => {
      if (this.running) return;
      this.#conversation.leaf = node.parent;
      this.#answer(this.#conversation);
    },
    edit: (node) => !this.running && this.#views.get(node.id)?.edit(),
    edited: (node, content) => {
      if (this.running || content === node.content) return;
      const { id, created, stats, finish, error, next, ...rest } = node;
      add(this.#conversation, node.parent, { ...rest, content });
      if (node.role !== "assistant") return this.#answer(this.#conversation);
      this.#save();
      return this.reset();
    },
    results: (node, texts) => this.#results(this.#conversation, node, texts),
    enterKey: () => this.#app.openSettings("key"),
  };

  /** Says something and asks for an answer; returns whether it was taken. */
  send(text) {
    if (this.running || !text.trim()) return false;
    if (openCalls(this.#conversation).length) {
      this.#app.toast("The model waits for the results of its calls. Send them, or ask for another answer.");
      return false;
    }
    add(this.#conversation, this.#conversation.leaf, { role: "user", content: text });
    this.#answer(this.#conversation);
    return true;
  }

  /** Asks the server to stop writing. */
  stop() {
    this.#runs.get(this.#conversation.id)?.control.abort();
  }

  /** Opens the last thing that the user said. */
  editLast() {
    const last = path(this.#conversation).findLast((node) => node.role === "user");
    if (last) this.#actions.edit(last);
  }

  #save(conversation = this.#conversation) {
    this.#app.save(conversation);
  }

  // ---- answers ----------------------------------------------------------------------------------------------------

  #body(conversation, nodes) {
    const { system, tools, thinking, sampling } = conversation.settings;
    const known = [...parseTools(tools), ...(conversation.settings.calculator ? [DEFINITION] : [])];
    const body = { messages: messagesOf(nodes, system), ...sampling };
    if (known.length) body.tools = known;
    if (this.#app.model.thinks) body.thinking = THINKING[thinking] ?? THINKING.on;
    return body;
  }

  #results(conversation, node, texts, again = 0) {
    node.calls.forEach((call, n) => {
      add(conversation, conversation.leaf, { role: "tool", content: texts[n], call: call.id, name: call.function.name });
    });
    this.#answer(conversation, again);
  }

  /** Asks for an answer; `again`: answers in a row before it whose calls the page has answered. */
  async #answer(conversation, again = 0) {
    const nodes = path(conversation);
    const node = add(conversation, conversation.leaf, { role: "assistant", content: "", reasoning: "", calls: [], running: true });
    const control = new AbortController();
    this.#runs.set(conversation.id, { control, conversation });
    this.#save(conversation);
    this.reset();
    announce("The answer begins");
    const clock = new Clock();
    try {
      for await (const chunk of stream("v1/chat/completions", this.#body(conversation, nodes), control.signal)) {
        take(node, chunk, clock);
        this.#refresh(node);
      }
    } catch (error) {
      if (error.name === "AbortError" || this.#left) node.finish = "stopped";
      else node.error = { message: adviceOn(error), needsKey: error.needsKey ?? false };
    }
    node.running = false;
    node.stats = clock.stats();
    this.#runs.delete(conversation.id);
    this.#save(conversation);
    if (conversation === this.#conversation) {
      const follows = this.#follows;
      for (const view of this.#views.values()) view.update();
      if (follows) this.#toEnd();
      this.#app.changed();
    }
    announce(node.error ? "The answer has failed" : "The answer is complete");
    const own = conversation.settings.calculator && node.finish === "tool_calls" && answers(node.calls);
    if (own && conversation.leaf === node.id && again < MOST_CALLS) this.#results(conversation, node, node.calls.map(answer), again + 1);
  }
}

/** Adds what a chunk of the stream brings. */
function take(node, chunk, clock) {
  if (chunk.usage) clock.usage = chunk.usage;
  const [choice] = chunk.choices;
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
  if (content || reasoning || calls) clock.tick(Boolean(reasoning));
  if (reasoning) node.reasoning += reasoning;
  if (content) node.content += content;
  for (const part of calls ?? []) {
    const call = (node.calls[part.index] ??= { id: part.id, type: "function", function: { name: "", arguments: "" } });
    call.function.name += part.function.name ?? "";
    call.function.arguments += part.function.arguments ?? "";
  }
  if (clock.thought !== undefined && node.reasoning) node.thought = clock.thought;
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

function adviceOn(error) {
  if (error.code === "context_length_exceeded") return `${error.message} Begin a new conversation, or edit a message above.`;
  if (error.needsKey) return apiKey.get() ? "The server does not know this API key." : "This server needs an API key.";
  return error.message;
}

/** Measures an answer as it comes. */
export class Clock {
  usage = null;
  #began = performance.now();
  #first = null;
  #last = null;
  #content = null;
  #chunks = 0;

  /** Something came: a part of the reasoning, or something else. */
  tick(reasons) {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#chunks += 1;
    if (!reasons) this.#content ??= this.#last;
  }

  /** Seconds of reasoning, once it is over. */
  get thought() {
    return this.#content === null ? undefined : (this.#content - this.#first) / 1000;
  }

  /** Returns the figures; of an answer that was stopped the server sends none, and parts are counted instead. */
  stats() {
    if (this.#first === null) return undefined;
    const { completion_tokens: counted, prompt_tokens: prompt, prompt_tokens_details: found, completion_tokens_details: drafts } = this.usage ?? {};
    const tokens = counted ?? this.#chunks;
    const between = (this.#last - this.#first) / 1000;
    const taken = drafts?.accepted_prediction_tokens ?? 0;
    const drafted = taken + (drafts?.rejected_prediction_tokens ?? 0);
    return {
      tokens, about: counted === undefined, prompt, cached: found?.cached_tokens, drafted, taken,
      rate: tokens > 1 && between > 0 ? (tokens - 1) / between : undefined,
      accepted: drafted ? tokens / Math.max(1, tokens - taken) : undefined,
      first: (this.#first - this.#began) / 1000, seconds: (this.#last - this.#began) / 1000,
    };
  }
}

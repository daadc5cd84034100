/** How a message looks. A view is made once and brought up to date while its message grows. */
import { copyButton, h, icon, iconButton } from "./dom.js";
import { codeBlock, render } from "./markdown.js";

const ENDS = {
  length: "Cut off: the answer has reached its largest length.",
  abort: "The server has ended this answer.",
  stopped: "Stopped.",
};
const NAMES = { user: "You", assistant: "Answer", tool: "Result" };

/** Returns the view of a message; `actions` are what its buttons do. */
export function messageView(node, actions) {
  const views = { user: userView, assistant: AnswerView.make, tool: toolView };
  return views[node.role](node, actions);
}

function frame(node, ...children) {
  return h("li", { class: `message ${node.role}`, "aria-label": NAMES[node.role], "data-id": node.id }, children);
}

function userView(node, actions) {
  const bubble = h("div", { class: "bubble" }, node.content);
  const element = frame(node, bubble, footer(node, actions, () => node.content));
  return { element, update: () => null, edit: () => edit(element, node, actions, "Send") };
}

function toolView(node, actions) {
  const title = h("div", { class: "call-name" }, icon("tool"), `Result of ${node.name ?? "a call"}`);
  const card = h("div", { class: "card" }, title, h("pre", { tabindex: "0" }, node.content));
  const element = frame(node, card, footer(node, actions, () => node.content));
  return { element, update: () => null, edit: () => edit(element, node, actions, "Send") };
}

/** The row of buttons below a message, and the figures of how it was generated. */
function footer(node, actions, text) {
  const [number, count] = actions.place(node);
  const turn = (by, name, label) =>
    iconButton(name, label, () => actions.turn(node, by), { disabled: number + by < 1 || number + by > count });
  const versions = h(
    "span", { class: "versions", role: "group", "aria-label": "Versions" },
    turn(-1, "left", "Version before"), h("span", {}, `${number}/${count}`), turn(1, "right", "Version after"),
  );
  return h(
    "div", { class: "footer" },
    count > 1 && versions,
    copyButton("Copy this message", text),
    node.role === "assistant" && iconButton("redo", "Another answer", () => actions.again(node)),
    iconButton("edit", "Edit this message", () => actions.edit(node)),
    node.stats && h("span", { class: "stats", title: detailsOf(node.stats) }, summaryOf(node.stats)),
  );
}

/** Puts an editor in a message's place until it is saved or given up. */
function edit(element, node, actions, label) {
  const before = [...element.childNodes];
  const area = h("textarea", { class: "editor-area", rows: 3, "aria-label": "Edited message" });
  const close = () => element.replaceChildren(...before);
  const save = () => {
    close();
    actions.edited(node, area.value);
  };
  area.value = node.content;
  area.addEventListener("input", () => grow(area));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
  });
  const buttons = h(
    "div", { class: "buttons" },
    h("button", { type: "button", onclick: close }, "Cancel"),
    h("button", { type: "button", class: "primary", onclick: save }, label),
  );
  element.replaceChildren(h("div", { class: "card" }, area, buttons));
  grow(area);
  area.focus();
}

/** Makes a text field as high as its text. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

// ---- figures ----------------------------------------------------------------------------------------------------------

const round = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 });

function summaryOf({ tokens, about, rate, accepted }) {
  const parts = [`${about ? "about " : ""}${tokens} token${tokens === 1 ? "" : "s"}`];
  if (rate) parts.push(`${round(rate)} tokens/s`);
  if (accepted) parts.push(`accepted length ${round(accepted)}`);
  return parts.join(" · ");
}

function detailsOf({ first, seconds, prompt, cached, drafted, taken }) {
  const parts = [];
  if (first !== undefined) parts.push(`First token after ${round(first)} s, all after ${round(seconds)} s`);
  if (prompt) parts.push(`Prompt of ${prompt} tokens, ${cached} of them from the cache`);
  if (drafted) parts.push(`${taken} of ${drafted} drafted tokens accepted`);
  return parts.join("\n");
}

// ---- answers ----------------------------------------------------------------------------------------------------------

class AnswerView {
  #node;
  #actions;
  #reasoning = h("div", { class: "markdown" });
  #summary = h("span");
  #thoughts = h("details", { class: "reasoning" }, h("summary", {}, icon("right"), this.#summary), this.#reasoning);
  #content = h("div", { class: "markdown" });
  #calls = h("div", { class: "calls" });
  #below = h("div");
  #touched = false;

  static make(node, actions) {
    return new AnswerView(node, actions);
  }

  constructor(node, actions) {
    this.#node = node;
    this.#actions = actions;
    this.#thoughts.firstChild.addEventListener("click", () => (this.#touched = true));
    this.element = frame(node, this.#thoughts, this.#content, this.#calls, this.#below);
    this.update();
  }

  /** Shows what the message has become. */
  update() {
    const { content, reasoning, calls, running } = this.#node;
    const thinks = running && !content && !calls.length;
    this.element.setAttribute("aria-busy", String(Boolean(running)));
    this.#thoughts.hidden = !reasoning;
    if (reasoning) render(this.#reasoning, reasoning);
    if (!this.#touched) this.#thoughts.open = Boolean(thinks && reasoning);
    this.#summary.textContent = thinks ? "Thinking…" : this.#thought();
    this.#thoughts.classList.toggle("live", Boolean(thinks));
    render(this.#content, content);
    this.#showCalls();
    this.#below.replaceChildren(...this.#end());
  }

  #thought() {
    const { thought } = this.#node;
    return thought === undefined ? "Reasoning" : `Thought for ${round(thought)} s`;
  }

  #end() {
    const { running, error, finish, content, reasoning, calls } = this.#node;
    if (running) return content || reasoning || calls.length ? [] : [h("div", { class: "waiting", "aria-hidden": "true" }, h("i"), h("i"), h("i"))];
    const found = [];
    if (error) {
      const again = error.needsKey
        ? h("button", { type: "button", onclick: this.#actions.enterKey }, "Enter a key")
        : h("button", { type: "button", onclick: () => this.#actions.again(this.#node) }, "Try again");
      found.push(h("div", { class: "error", role: "alert" }, h("span", {}, error.message), again));
    } else if (!content && !reasoning && !calls.length && finish === "stop") {
      found.push(h("p", { class: "note end" }, "The model has said nothing."));
    } else if (ENDS[finish]) found.push(h("p", { class: "note end" }, ENDS[finish]));
    return [...found, footer(this.#node, this.#actions, () => content)];
  }

  #showCalls() {
    const { calls, running } = this.#node;
    const open = !running && this.#actions.isOpen(this.#node);
    const key = JSON.stringify([calls, open]);
    if (this.#calls.key === key) return;
    this.#calls.key = key;
    const areas = [];
    const cards = calls.map((call) => callCard(call, open, areas));
    const send = h("button", { type: "button", class: "primary", onclick: () => this.#actions.results(this.#node, areas.map((area) => area.value)) }, calls.length > 1 ? "Send the results" : "Send the result");
    this.#calls.replaceChildren(...cards, ...(open && calls.length ? [h("div", { class: "buttons" }, send)] : []));
  }

  edit() {
    edit(this.element, this.#node, this.#actions, "Save");
  }
}

function callCard(call, open, areas) {
  const name = call.function.name || "…";
  const card = h("div", { class: "card call" }, h("div", { class: "call-name" }, icon("tool"), h("span", {}, "Calls "), h("b", {}, name)));
  card.append(codeBlock(pretty(call.function.arguments), "json"));
  if (open) {
    const area = h("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: `What ${name} gives` });
    area.addEventListener("input", () => grow(area));
    areas.push(area);
    card.append(area);
  }
  return card;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it is still being written
  }
}

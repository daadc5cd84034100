/** Puts the page together. */
import { getJson } from "./api.js";
import { NAME as CALCULATOR } from "./calculator.js";
import { Chat } from "./chat.js";
import { byId, download, h, icon, iconButton } from "./dom.js";
import { asJson, asMarkdown, fileName } from "./export.js";
import { grow } from "./message.js";
import { Playground } from "./playground.js";
import { parseTools } from "./sampling.js";
import { showSettings } from "./settings.js";
import { showSidebar } from "./sidebar.js";
import { conversations, DEFAULTS, settings, theme } from "./store.js";
import { newConversation } from "./tree.js";

const TOUCH = matchMedia("(pointer: coarse)");

class App {
  model = { name: "", chat: true, thinks: true, max_model_len: 0, no_chat: "" };
  mode = "chat";
  conversation = newConversation(settings.load());

  start() {
    this.applyTheme();
    this.#buildBar();
    this.chat = new Chat(this);
    this.playground = new Playground(this);
    this.#listen();
    const id = location.hash.slice(1);
    if (conversations.all().some((each) => each.id === id)) this.open(id);
    else this.chat.show();
    this.connect();
  }

  // ---- the server -------------------------------------------------------------------------------------------------

  /** Asks the server what it serves. */
  async connect() {
    const banner = byId("banner");
    try {
      this.model = await getJson("page/model.json");
    } catch (error) {
      const text = error.needsKey ? "This server needs an API key." : error.message;
      const act = error.needsKey
        ? h("button", { type: "button", onclick: () => this.openSettings("key") }, "Enter a key")
        : h("button", { type: "button", onclick: () => this.connect() }, "Try again");
      banner.replaceChildren(h("span", {}, text), act);
      banner.hidden = false;
      return;
    }
    banner.hidden = true;
    const { name, max_model_len: length, chat, thinks, base } = this.model;
    byId("model-name").textContent = document.title = name;
    byId("model-length").textContent = `${length.toLocaleString("en")} tokens of context`;
    byId("modes").hidden = !chat;
    byId("thinking-field").hidden = !thinks;
    if (this.conversation.leaf === null) {
      this.#offer(this.conversation);
      this.chat.show();
    }
    const fresh = base && this.conversation.leaf === null && conversations.all().length === 0;
    this.setMode(chat && !fresh ? this.mode : "playground");
  }

  /** Switches the model's tools on, unless people have chosen already. */
  #offer(conversation) {
    conversation.settings.calculator ??= this.model.tools?.includes(CALCULATOR) ?? false;
    if (this.model.base) conversation.settings.thinking = "off";
    return conversation;
  }

  setMode(mode) {
    this.mode = mode;
    byId("chat").hidden = mode !== "chat";
    byId("playground").hidden = mode !== "playground";
    byId("mode-chat").setAttribute("aria-pressed", String(mode === "chat"));
    byId("mode-playground").setAttribute("aria-pressed", String(mode === "playground"));
    document.body.dataset.mode = mode;
    if (mode === "playground") this.playground.show();
    if (!byId("settings").hidden) showSettings(this);
    if (!TOUCH.matches && byId("settings").hidden) (mode === "chat" ? byId("input") : this.playground).focus();
  }

  // ---- conversations ----------------------------------------------------------------------------------------------

  create() {
    this.#use(this.#offer(newConversation(settings.load())));
    history.replaceState(null, "", location.pathname);
    if (this.model.chat) this.setMode("chat");
    byId("input").focus();
  }

  /** Shows a conversation that is kept. */
  open(id) {
    const found = this.chat.runningOne(id) ?? conversations.all().find((each) => each.id === id);
    if (!found) return this.toast("This conversation was deleted in another tab.");
    for (const node of Object.values(found.nodes)) {
      if (node.running && !this.chat.isRunning(id)) Object.assign(node, { running: false, finish: "stopped" });
    }
    this.#use(found);
    history.replaceState(null, "", `#${id}`);
    return this.setMode("chat");
  }

  #use(conversation) {
    this.conversation = conversation;
    conversation.settings = { ...structuredClone(DEFAULTS), ...conversation.settings };
    this.closePanels();
    this.chat.reset();
  }

  save(conversation) {
    if (conversation === this.conversation) history.replaceState(null, "", `#${conversation.id}`); // for a reload
    if (!conversations.save(conversation)) this.toast("This browser has no more room: the conversation is not kept. Delete others, or export it.");
    showSidebar(this);
  }

  remove(id) {
    const gone = conversations.all().find((each) => each.id === id);
    conversations.remove(id);
    if (id === this.conversation.id) this.create();
    showSidebar(this);
    this.toast(`Deleted ${gone?.title || "the conversation"}.`, "Undo", () => {
      this.save(gone);
    });
  }

  deleteAll() {
    for (const { id } of conversations.all()) conversations.remove(id);
    this.create();
    this.toast("All conversations are deleted.");
  }

  /** Brings what stands around the messages up to date. */
  changed() {
    const { running } = this.chat;
    const send = byId("send");
    const name = running ? "stop" : "send";
    if (send.dataset.name !== name) {
      send.replaceChildren(icon(name));
      send.dataset.name = name;
      send.title = running ? "Stop" : "Send";
      send.setAttribute("aria-label", send.title);
    }
    byId("send-hint").textContent = running ? "Esc stops" : TOUCH.matches ? "" : "Enter sends";
    byId("thinking").value = this.conversation.settings.thinking;
    this.#countTools();
    showSidebar(this);
  }

  #countTools() {
    let text = "Tools: mistake";
    try {
      const count = parseTools(this.conversation.settings.tools).length + Number(this.conversation.settings.calculator ?? false);
      text = count ? `${count} tool${count === 1 ? "" : "s"}` : "";
    } catch {
      byId("tools-chip").classList.add("wrong");
    }
    byId("tools-chip").textContent = text;
    byId("tools-chip").hidden = text === "";
    byId("tools-chip").classList.toggle("wrong", text === "Tools: mistake");
  }

  // ---- settings ---------------------------------------------------------------------------------------------------

  changeSettings(changes) {
    Object.assign(this.conversation.settings, changes);
    settings.save(this.conversation.settings);
    if (this.conversation.leaf !== null) conversations.save(this.conversation);
    this.#countTools();
  }

  openSettings(focus = null) {
    this.closePanels();
    showSettings(this);
    byId("settings").hidden = false;
    byId("shade").hidden = false;
    byId("settings-button").setAttribute("aria-expanded", "true");
    (focus ? byId(focus) : byId("settings").querySelector("button")).focus();
  }

  closeSettings() {
    if (byId("settings").hidden) return;
    byId("settings").hidden = true;
    byId("shade").hidden = true;
    byId("settings-button").setAttribute("aria-expanded", "false");
    byId("settings-button").focus();
  }

  closePanels() {
    this.closeSettings();
    document.body.classList.remove("side-open");
    byId("menu-button").setAttribute("aria-expanded", "false");
    byId("shade").hidden = true;
  }

  applyTheme() {
    document.documentElement.dataset.theme = theme.load();
  }

  toast(text, label = null, act = null) {
    const toast = byId("toast");
    const close = () => (toast.hidden = true);
    const button = label && h("button", { type: "button", onclick: () => { act(); close(); } }, label);
    toast.replaceChildren(h("span", {}, text), ...(button ? [button] : []));
    toast.hidden = false;
    clearTimeout(this.toastTimer);
    this.toastTimer = setTimeout(close, 8000);
  }

  // ---- the frame --------------------------------------------------------------------------------------------------

  #buildBar() {
    const menu = iconButton("menu", "Conversations", () => this.#toggleSide(), { id: "menu-button", "aria-expanded": "false", "aria-controls": "sidebar" });
    byId("bar-left").append(menu);
    const save = (kind, type, write) => h("button", {
      type: "button", onclick: () => {
        download(fileName(this.conversation, kind), type, write(this.conversation, this.model));
        byId("export-menu").hidePopover();
      },
    }, kind === "md" ? "Markdown" : "JSON");
    const choices = h("div", { id: "export-menu", popover: "auto", "aria-label": "Export as" }, save("md", "text/markdown", asMarkdown), save("json", "application/json", asJson));
    const knob = iconButton("sliders", "Settings", () => (byId("settings").hidden ? this.openSettings() : this.closeSettings()), { id: "settings-button", "aria-expanded": "false", "aria-controls": "settings" });
    const create = iconButton("plus", "New conversation", () => this.create(), { id: "new-button" });
    document.querySelector(".side-head").append(iconButton("plus", "New conversation", () => this.create()));
    byId("bar-right").append(create, iconButton("save", "Export this conversation", null, { popovertarget: "export-menu", id: "export-button" }), choices, knob);
    byId("mode-chat").addEventListener("click", () => this.setMode("chat"));
    byId("mode-playground").addEventListener("click", () => this.setMode("playground"));
  }

  #toggleSide() {
    const open = document.body.classList.toggle("side-open");
    byId("menu-button").setAttribute("aria-expanded", String(open));
    byId("shade").hidden = !open;
  }

  #listen() {
    const input = byId("input");
    const send = () => {
      if (!this.chat.send(input.value)) return;
      input.value = "";
      grow(input);
    };
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.chat.running) this.chat.stop();
      else send();
    });
    input.addEventListener("input", () => grow(input));
    input.addEventListener("keydown", (event) => {
      const enters = event.key === "Enter" && !event.shiftKey && !event.isComposing;
      if (enters && (!TOUCH.matches || event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        send();
      }
      if (event.key === "ArrowUp" && input.value === "") this.chat.editLast();
    });
    byId("thinking").addEventListener("change", (event) => this.changeSettings({ thinking: event.target.value }));
    byId("tools-chip").addEventListener("click", () => this.openSettings("tools"));
    byId("shade").addEventListener("click", () => this.closePanels());
    document.addEventListener("keydown", (event) => this.#shortcut(event));
    conversations.watch(() => showSidebar(this));
    addEventListener("pagehide", () => this.chat.leave().forEach((each) => conversations.save(each)));
    addEventListener("pageshow", (event) => event.persisted && location.reload());
  }

  #shortcut(event) {
    const writes = event.target.closest("input, textarea, select");
    if (event.key === "Escape") {
      if (!byId("settings").hidden || document.body.classList.contains("side-open")) this.closePanels();
      else if (this.mode === "chat") this.chat.stop();
      else this.playground.stop();
    } else if (event.key === "/" && !writes) {
      event.preventDefault();
      (this.mode === "chat" ? byId("input") : this.playground).focus();
    } else if ((event.ctrlKey || event.metaKey) && event.shiftKey && "SE".includes(event.key.toUpperCase())) {
      event.preventDefault();
      if (event.key.toUpperCase() === "S") byId("settings-button").click();
      else this.create();
    }
  }
}

new App().start();

/** The panel of settings. Changes apply to the present conversation and to new ones. */
import { apiKey } from "./api.js";
import { byId, h, iconButton } from "./dom.js";
import { parseTools, samplingInputs } from "./sampling.js";
import { theme } from "./store.js";

const EXAMPLE = '[{"name": "weather", "description": "...", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]';
const KEYS = [
  ["Enter", "send"], ["Shift Enter", "new line"], ["Esc", "stop the answer, close a panel"], ["↑", "edit your last message (in an empty field)"],
  ["/", "go to the message field"], ["Ctrl Shift S", "settings"], ["Ctrl Shift E", "new conversation"],
];
const KEY_FORM = /^[!-~]*$/;

/** Fills the panel. */
export function showSettings(app) {
  const { settings } = app.conversation;
  const change = (changes) => app.changeSettings(changes);
  const inChat = app.mode === "chat";
  const sampling = inChat
    ? samplingInputs("chat", () => app.conversation.settings.sampling, (value) => change({ sampling: value }))
    : samplingInputs("text", () => app.conversation.settings.playground, (value) => change({ playground: value }));
  byId("settings").replaceChildren(
    h("header", {}, h("h2", {}, "Settings"), iconButton("close", "Close the settings", () => app.closeSettings())),
    h("div", { class: "panel" }, inChat && [systemField(settings, change), toolsField(settings, change), calculatorField(settings, change)],
      h("fieldset", {}, h("legend", {}, "Sampling"), h("div", { class: "grid" }, sampling)),
      keyField(app), themeField(app), keyboard(), dataField(app)),
  );
}

function systemField(settings, change) {
  const area = h("textarea", { id: "system", rows: 4, placeholder: "You are a helpful assistant.", oninput: () => change({ system: area.value }) });
  area.value = settings.system;
  return h("div", { class: "field wide" }, h("label", { for: "system" }, "System prompt"), area);
}

function toolsField(settings, change) {
  const note = h("span", { class: "note", id: "tools-note" });
  const area = h("textarea", { id: "tools", rows: 5, class: "mono", spellcheck: "false", placeholder: EXAMPLE, "aria-describedby": note.id });
  const check = () => {
    try {
      const count = parseTools(area.value).length;
      note.textContent = count ? `${count} tool${count === 1 ? "" : "s"}. You type the results of calls.` : "JSON, as in OpenAI's API. You type the results of calls.";
      note.classList.remove("wrong");
      area.setAttribute("aria-invalid", "false");
    } catch (error) {
      note.textContent = error.message;
      note.classList.add("wrong");
      area.setAttribute("aria-invalid", "true");
    }
  };
  area.value = settings.tools;
  area.addEventListener("input", () => {
    check();
    change({ tools: area.value });
  });
  check();
  return h("div", { class: "field wide" }, h("label", { for: "tools" }, "Tools"), area, note);
}

function calculatorField(settings, change) {
  const box = h("input", { id: "calculator", type: "checkbox", onchange: () => change({ calculator: box.checked }) });
  box.checked = settings.calculator ?? false;
  return h("div", { class: "field wide" }, h("label", { for: "calculator" }, box, " Calculator: the page answers its calls"));
}

function keyField(app) {
  const note = h("span", { class: "note", id: "key-note" }, "Kept until this tab is closed");
  const input = h("input", { id: "key", type: "password", autocomplete: "off", placeholder: "none", "aria-describedby": note.id });
  input.value = apiKey.get();
  input.addEventListener("change", () => {
    const key = input.value.trim();
    const fits = KEY_FORM.test(key);
    note.textContent = fits ? "Kept until this tab is closed" : "A key has no spaces and ASCII characters only";
    note.classList.toggle("wrong", !fits);
    if (!fits) return;
    apiKey.set(key);
    app.connect();
  });
  const form = { class: "field wide", onsubmit: (event) => event.preventDefault() };
  return h("form", form, h("label", { for: "key" }, "API key"), input, note);
}

function themeField(app) {
  const select = h("select", { id: "theme" }, ["auto", "light", "dark"].map((name) => h("option", { value: name }, name)));
  select.value = theme.load();
  select.addEventListener("change", () => {
    theme.save(select.value);
    app.applyTheme();
  });
  return h("div", { class: "field wide" }, h("label", { for: "theme" }, "Theme"), select);
}

function keyboard() {
  const rows = KEYS.map(([keys, what]) => h("div", {}, h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, what)));
  return h("fieldset", { class: "keys" }, h("legend", {}, "Keyboard"), h("dl", {}, rows));
}

function dataField(app) {
  const forget = h("button", { type: "button", class: "danger" }, "Delete all conversations");
  forget.addEventListener("click", () => {
    if (forget.dataset.sure) return app.deleteAll();
    forget.dataset.sure = "yes";
    forget.textContent = "Really delete all? This cannot be undone";
    return undefined;
  });
  return h("div", { class: "field wide" }, forget);
}

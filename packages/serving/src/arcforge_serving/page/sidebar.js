/** The list of conversations. */
import { byId, h, iconButton } from "./dom.js";
import { conversations } from "./store.js";

/** Shows the conversations that are kept, and marks the present one. */
export function showSidebar(app) {
  const all = conversations.all();
  const rows = all.map((conversation) => {
    const here = conversation.id === app.conversation.id;
    const title = conversation.title || "New conversation";
    const open = h("button", { type: "button", class: "title", "aria-current": here ? "page" : null, onclick: () => app.open(conversation.id) }, title);
    return h("li", { class: here ? "here" : "" }, open, iconButton("trash", `Delete ${title}`, () => app.remove(conversation.id)));
  });
  byId("conversations").replaceChildren(...rows);
  byId("kept").hidden = all.length === 0;
}

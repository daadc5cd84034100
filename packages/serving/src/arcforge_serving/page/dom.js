/** Helpers around the DOM. Text only ever becomes text nodes; nothing on this page parses HTML. */

const ICONS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  sliders: "M4 8h9M19 8h1M4 16h1M11 16h9M16 5.5v5M8 13.5v5",
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 12.5 10 17 19 7",
  redo: "M19 12a7 7 0 1 1-2.1-5M19 4v4h-4",
  undo: "M5 8h8a5.5 5.5 0 0 1 0 11H9M5 8l4-4M5 8l4 4",
  edit: "M5 19h4L19 9l-4-4L5 15z",
  trash: "M5 7h14M9 7V5h6v2M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M6 10l6 6 6-6",
  close: "M6 6l12 12M18 6 6 18",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  tool: "M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3z",
  key: "M14 10a4 4 0 1 1-1.5-3.1M12.5 13.5 19 20M16 17l2-2",
  keyboard: "M3 7h18v10H3zM7 10h.01M11 10h.01M15 10h.01M8 14h8",
};

/**
 * Makes an element. Attributes whose names begin with "on" are listeners; false, null and undefined leave one out.
 * Children are nodes, texts, or nothing.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" })) {
    svg.setAttribute(key, value);
  }
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon alone; its label is for screen readers and, as a tip, for everybody. */
export function iconButton(name, label, onclick, attributes = {}) {
  const { class: more = "", ...others } = attributes;
  const named = { type: "button", "aria-label": label, title: label };
  return h("button", { ...named, ...others, class: `icon-button ${more}`.trim(), onclick }, icon(name));
}

export function byId(id) {
  return document.getElementById(id);
}

/** Tells screen readers what has happened. */
export function announce(text) {
  byId("announce").textContent = text;
}

/** A button that copies what `text()` gives, and shows that it has. */
export function copyButton(label, text, attributes = {}) {
  const button = iconButton("copy", label, async () => {
    const copied = await copy(text());
    button.replaceChildren(icon(copied ? "check" : "close"));
    announce(copied ? "Copied" : "The browser does not let this page copy");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  }, attributes);
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers give pages on plain http no clipboard, except this machine's own.
    const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    const before = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    before?.focus?.();
    return copied;
  }
}

/** Hands a text to the user as a file. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

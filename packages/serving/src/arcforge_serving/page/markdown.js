/**
 * Markdown as models write it, read by markdown-it and made into elements here. No text is ever parsed as HTML: tokens
 * become the elements of SHOWN and no others, with the attributes set there and no others; pictures are not
 * loaded, and links lead to pages and letters only. Shown again while it grows, only changed blocks are rebuilt.
 */
import "./markdown-it.umd.min.js";
import { asModelsWrite } from "./dialect.js";
import { copyButton, h } from "./dom.js";
import { highlight } from "./highlight.js";

const reader = asModelsWrite(globalThis.markdownit({ html: false, linkify: true }));

/** Shows a text in an element. */
export function render(target, text) {
  const blocks = blocksOf(text);
  const before = target.sources ?? [];
  let same = 0;
  while (same < blocks.length && before[same] === blocks[same].source) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of blocks.slice(same)) target.append(...elements(block.tokens));
  target.sources = blocks.map((block) => block.source);
}

/** Returns the outermost blocks: tokens, and the `source` that decides what they look like. */
function blocksOf(text) {
  const lines = text.split(/\r\n?|\n/);
  const blocks = [];
  for (const token of reader.parse(text, {})) {
    if (token.level === 0 && token.nesting >= 0) {
      blocks.push({ tokens: [], source: [token.type, ...lines.slice(...token.map)].join("\n") });
    }
    const block = blocks.at(-1);
    block.tokens.push(token);
    // The address of a link by reference may stand in another block.
    for (const { type, attrs } of token.children ?? []) if (type === "link_open") block.source += `\n${attrs[0][1]}`;
  }
  return blocks;
}

/** Returns the nodes of tokens that are balanced. */
function elements(tokens) {
  const open = [{ token: null, nodes: [] }];
  for (const token of tokens) {
    if (token.nesting > 0) {
      open.push({ token, nodes: [] });
      continue;
    }
    const ended = token.nesting < 0 ? open.pop() : { token, nodes: [] };
    open.at(-1).nodes.push(...SHOWN[ended.token.type](ended.token, ended.nodes));
  }
  return open[0].nodes;
}

// ---- showing ----------------------------------------------------------------------------------------------------------

const wrap = (tag) => (token, nodes) => [h(tag, {}, nodes)];
const cell = (tag) => (token, nodes) => {
  const side = /^text-align:(left|center|right)$/.exec(token.attrGet("style") ?? "")?.[1] ?? "left";
  return [h(tag, { class: `to-${side}` }, nodes)];
};
const SHOWN = {
  inline: (token) => elements(token.children),
  paragraph_open: (token, nodes) => (token.hidden ? nodes : [h("p", {}, nodes)]),
  heading_open: (token, nodes) => {
    const level = Number(token.tag.slice(1));
    return [h(`h${Math.min(level + 2, 6)}`, { class: `level-${level}` }, nodes)];
  },
  hr: wrap("hr"),
  blockquote_open: wrap("blockquote"),
  bullet_list_open: wrap("ul"),
  ordered_list_open: (token, nodes) => [h("ol", { start: token.attrGet("start") }, nodes)],
  list_item_open: (token, nodes) => [h("li", { class: token.meta?.task && "task" }, nodes)],
  table_open: (token, nodes) => [h("div", { class: "table", tabindex: "0" }, h("table", {}, nodes))],
  thead_open: wrap("thead"),
  tbody_open: wrap("tbody"),
  tr_open: wrap("tr"),
  th_open: cell("th"),
  td_open: cell("td"),
  fence: (token) => [codeBlock(withoutEnd(token.content), token.info.trim().split(/[\s{,]/)[0])],
  code_block: (token) => [codeBlock(withoutEnd(token.content), "")],
  math_block: (token) => [h("pre", { class: "math", tabindex: "0" }, token.content)],

  text: (token) => [token.content],
  softbreak: wrap("br"),
  hardbreak: wrap("br"),
  em_open: wrap("em"),
  strong_open: wrap("strong"),
  s_open: wrap("s"),
  code_inline: (token) => [h("code", {}, token.content)],
  math_inline: (token) => [h("span", { class: "math" }, token.content)],
  link_open: (token, nodes) => [link(token.attrGet("href"), nodes)],
  task_box: (token) => [h("input", { type: "checkbox", disabled: true, checked: token.meta.done, "aria-label": "Task" })],
  image: (token) => [link(token.attrGet("src"), ["Picture: ", ...elements(token.children)])],
};
function link(address, nodes) {
  return h("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, nodes);
}

const withoutEnd = (code) => code.replace(/\n$/, "");

/** Code with its language and a button that copies it. */
export function codeBlock(code, language) {
  const label = h("span", { class: "language" }, language || "code");
  const header = h("div", { class: "code-header" }, label, copyButton("Copy this code", () => code));
  return h("div", { class: "code" }, header, h("pre", { tabindex: "0" }, h("code", {}, highlight(code, language))));
}

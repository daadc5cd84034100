/**
 * Markdown as models write it, made into elements: no text is ever parsed as HTML, pictures are not loaded, and links
 * lead to pages and letters only. Shown again while it grows, only the blocks that have changed are rebuilt.
 */
import { copyButton, h } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";

const DEPTH = 10;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const INDENTED = /^ {4}/;
const FORMULA = { $$: "$$", "\\[": "\\]" };
const COLUMNS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const TASK = /^\[([ xX])\] /;

/** Shows a text in an element. */
export function render(target, text) {
  const found = parse(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"), 0);
  const before = target.sources ?? [];
  let same = 0;
  while (same < found.length && before[same] === found[same].source) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of found.slice(same)) target.append(element(block));
  target.sources = found.map((block) => block.source);
}

// ---- reading ----------------------------------------------------------------------------------------------------------

/** Returns the blocks of lines; each has its `source`, which decides what it looks like. */
function parse(lines, depth) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const block = read(lines, at, depth);
    block.source = `${block.kind}\n${lines.slice(at, block.end).join("\n")}`;
    at = block.end;
    blocks.push(block);
  }
  return blocks;
}

function read(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fence(lines, at);
  const formula = Object.keys(FORMULA).find((begin) => line.trimStart().startsWith(begin));
  if (formula) return math(lines, at, formula);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, text: (heading[2] ?? "").trim(), end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line) && depth < DEPTH) return quote(lines, at, depth);
  if (ITEM.test(line) && depth < DEPTH) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  if (INDENTED.test(line)) return indented(lines, at);
  return paragraph(lines, at, depth);
}

function starts(lines, at, depth) {
  const line = lines[at];
  const nested = depth < DEPTH && (QUOTE.test(line) || ITEM.test(line));
  return nested || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || isTable(lines, at);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !starts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd();
  return { kind: "paragraph", text, end };
}

function fence(lines, at) {
  const [, marks, info] = FENCE.exec(lines[at]);
  const indent = lines[at].search(/[`~]/);
  let end = at + 1;
  const closes = (line) => {
    const text = line.trim();
    return text.length >= marks.length && text === marks[0].repeat(text.length);
  };
  while (end < lines.length && !closes(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).map((line) => dedent(line, indent)).join("\n");
  return { kind: "code", language: info.trim().split(/[\s{,]/)[0], code, end: Math.min(end + 1, lines.length) };
}

function indented(lines, at) {
  let end = at;
  while (end < lines.length && (INDENTED.test(lines[end]) || lines[end].trim() === "")) end += 1;
  while (lines[end - 1].trim() === "") end -= 1;
  return { kind: "code", language: "", code: lines.slice(at, end).map((line) => line.slice(4)).join("\n"), end };
}

function math(lines, at, begin) {
  const close = FORMULA[begin];
  const first = lines[at].trimStart().slice(begin.length);
  let end = at;
  if (!first.includes(close)) {
    end += 1;
    while (end < lines.length && !lines[end].includes(close)) end += 1;
  } else if (!first.trimEnd().endsWith(close)) {
    return paragraph(lines, at, DEPTH); // text follows the formula
  }
  end = Math.min(end + 1, lines.length);
  return { kind: "math", text: lines.slice(at, end).join("\n"), end };
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return { kind: "quote", blocks: parse(lines.slice(at, end).map((line) => line.replace(QUOTE, "")), depth + 1), end };
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function dedent(line, columns) {
  return line.slice(Math.min(columns, indentOf(line)));
}

function nextText(lines, at) {
  let next = at;
  while (next < lines.length && lines[next].trim() === "") next += 1;
  return next;
}

/** Deeper items belong to an item from two columns on, whatever the width of its number. */
function list(lines, at, depth) {
  const [, , mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const base = indentOf(lines[at]);
  const items = [];
  let end = at;
  let loose = false;
  while (end < lines.length) {
    const next = ITEM.exec(lines[end]);
    const sibling = next && indentOf(lines[end]) < base + 2 && /\d/.test(next[2]) === ordered;
    if (!sibling || RULE.test(lines[end])) break;
    const begin = end;
    const width = Math.max(next[0].length, 2);
    end += 1;
    while (end < lines.length) {
      const line = lines[end];
      if (line.trim() === "") {
        const follows = nextText(lines, end);
        if (follows === lines.length || indentOf(lines[follows]) < base + 2) break;
      } else if (indentOf(line) < base + 2 && (lines[end - 1].trim() === "" || starts(lines, end, depth))) break;
      end += 1;
    }
    const own = [lines[begin].slice(next[0].length), ...lines.slice(begin + 1, end).map((line) => dedent(line, width))];
    items.push(parse(own, depth + 1));
    loose ||= own.some((line, index) => line.trim() === "" && index > 0 && own[index + 1] !== undefined);
    const after = nextText(lines, end);
    const another = after < lines.length && after > end ? ITEM.exec(lines[after]) : null;
    if (another && indentOf(lines[after]) < base + 2 && /\d/.test(another[2]) === ordered) [end, loose] = [after, true];
  }
  return { kind: "list", ordered, start: Number.parseInt(mark, 10), items, loose, end };
}

function isTable(lines, at) {
  const under = lines[at + 1] ?? "";
  const ruled = lines[at].includes("|") && under.includes("-") && under.length <= 1000 && COLUMNS.test(under);
  return ruled && cells(lines[at]).length === cells(under).length;
}

function table(lines, at) {
  const aligned = cells(lines[at + 1]).map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return "left";
  });
  let end = at + 2;
  while (end < lines.length && lines[end].trim() !== "" && lines[end].includes("|")) end += 1;
  return { kind: "table", aligned, head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells), end };
}

function cells(line) {
  const found = [""];
  let code = false;
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") found[found.length - 1] += text[(at += 1)];
    else if (text[at] === "|" && !code) found.push("");
    else {
      if (text[at] === "`") code = !code;
      found[found.length - 1] += text[at];
    }
  }
  if (found.length > 1 && found.at(-1).trim() === "") found.pop();
  return found.map((cell) => cell.trim());
}

// ---- showing ----------------------------------------------------------------------------------------------------------

const SHOWN = {
  paragraph: ({ text }) => h("p", {}, inline(text)),
  heading: ({ level, text }) => h(`h${Math.min(level + 2, 6)}`, { class: `level-${level}` }, inline(text)),
  rule: () => h("hr"),
  quote: ({ blocks }) => h("blockquote", {}, blocks.map(element)),
  math: ({ text }) => h("pre", { class: "math", tabindex: "0" }, text),
  code: ({ code, language }) => codeBlock(code, language),
  list: ({ ordered, start, items, loose }) =>
    h(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, items.map((blocks) => item(blocks, loose))),
  table: ({ aligned, head, rows }) => {
    const row = (tag, texts) =>
      h("tr", {}, aligned.map((side, n) => h(tag, { class: `to-${side}` }, inline(texts[n] ?? ""))));
    const body = h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, rows.map((texts) => row("td", texts))));
    return h("div", { class: "table", tabindex: "0" }, body);
  },
};

function element(block) {
  return SHOWN[block.kind](block);
}

function item(blocks, loose) {
  const [first, ...others] = blocks;
  const task = first?.kind === "paragraph" ? TASK.exec(first.text) : null;
  if (task) first.text = first.text.slice(task[0].length);
  const box = task && h("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "Task" });
  const begin = first?.kind === "paragraph" && !loose ? inline(first.text) : first ? [element(first)] : [];
  return h("li", task ? { class: "task" } : {}, box, begin, others.map(element));
}

/** Code with its language and a button that copies it. */
export function codeBlock(code, language) {
  const label = h("span", { class: "language" }, language || "code");
  const header = h("div", { class: "code-header" }, label, copyButton("Copy this code", () => code));
  return h("div", { class: "code" }, header, h("pre", { tabindex: "0" }, h("code", {}, highlight(code, language))));
}

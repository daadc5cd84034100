/**
 * The inside of a paragraph: emphasis, code, links, line breaks. The time is linear in the text whatever it holds, and
 * what it becomes is nested no deeper than DEPTH.
 */
import { h } from "./dom.js";

const DEPTH = 60;
const SPACE = /\s/u;
const WORD = /[\p{L}\p{N}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const URL_START = /https?:\/\/[^\s<>"]+/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]*|[\w.+-]+@[\w.-]+)>/y;
const LINE_BREAK = /<br\s*\/?>/iy;
const TARGET =
  /\(\s{0,9}(?:<([^<>\n]*)>|([^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*))(?:\s{1,9}(?:"[^"]*"|'[^']*'))?\s{0,9}\)/y;
const SCHEMES = ["http:", "https:", "mailto:"];

/** The address if following it does no more than open a page or a letter, else null. */
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, children) {
  const url = safeUrl(address);
  if (url === null) return [...children, address ? ` (${address})` : ""];
  return [h("a", { href: url, title: url, target: "_blank", rel: "noopener noreferrer nofollow" }, children)];
}

/** Returns the nodes of a text. */
export function inline(text) {
  return new Reader(text).nodes();
}

/** A frame is a mark that may still be closed, with what came after it; the first one is the text itself. */
class Reader {
  #text;
  #at = 0;
  #plain = "";
  #frames = [{ kind: "", count: 0, nodes: [], open: {} }];
  #brackets = [0];
  #absent = new Set();

  constructor(text) {
    this.#text = text;
  }

  nodes() {
    while (this.#at < this.#text.length) this.#step();
    this.#flatten(0);
    return this.#frames[0].nodes;
  }

  #step() {
    const c = this.#text[this.#at];
    if (c === "\\") return this.#escape();
    if (c === "`") return this.#code();
    if (c === "*" || c === "_" || c === "~") return this.#mark(c);
    if (c === "[" || (c === "!" && this.#text[this.#at + 1] === "[")) return this.#bracket(c);
    if (c === "]") return this.#closeBracket();
    if (c === "<") return this.#angle();
    if (c === "$" && this.#text[this.#at + 1] === "$" && this.#verbatim("$$", "$$")) return undefined;
    if (c === "h" && this.#bareUrl()) return undefined;
    if (c === "\n") return this.#newline();
    return this.#literal(c);
  }

  #literal(text) {
    this.#plain += text;
    this.#at += text.length;
  }

  #push(...nodes) {
    const into = this.#frames.at(-1).nodes;
    if (this.#plain) into.push(this.#plain);
    this.#plain = "";
    for (const node of nodes) into.push(node);
  }

  /** Position of the next `end`; one that is missing once is missing in the rest, and is not searched again. */
  #find(end, from) {
    if (this.#absent.has(end)) return -1;
    const found = this.#text.indexOf(end, from);
    if (found < 0) this.#absent.add(end);
    return found;
  }

  #escape() {
    const next = this.#text[this.#at + 1];
    if (next === "\n") {
      this.#at += 1;
      return this.#newline();
    }
    if (next === "(" && this.#verbatim("\\(", "\\)")) return undefined;
    if (next === "[" && this.#verbatim("\\[", "\\]")) return undefined;
    if (next === undefined || !ESCAPABLE.test(next)) return this.#literal("\\");
    this.#plain += next;
    this.#at += 2;
    return undefined;
  }

  /** Formulas stay as they are written: their stars and underscores are no emphasis. */
  #verbatim(begin, end) {
    const found = this.#find(end, this.#at + begin.length);
    if (found < 0) return false;
    const until = found + end.length;
    this.#push(h("span", { class: "math" }, this.#text.slice(this.#at, until)));
    this.#at = until;
    return true;
  }

  #run(c) {
    let end = this.#at;
    while (this.#text[end] === c) end += 1;
    return end - this.#at;
  }

  #code() {
    const ticks = "`".repeat(this.#run("`"));
    const begin = this.#at + ticks.length;
    let end = this.#absent.has(ticks) ? -1 : this.#text.indexOf(ticks, begin);
    while (end >= 0 && (this.#text[end + ticks.length] === "`" || this.#text[end - 1] === "`")) {
      let after = end;
      while (this.#text[after] === "`") after += 1;
      end = this.#text.indexOf(ticks, after);
    }
    if (end < 0) {
      this.#absent.add(ticks);
      return this.#literal(ticks);
    }
    const inner = this.#text.slice(begin, end).replaceAll("\n", " ");
    const padded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
    this.#push(h("code", {}, padded ? inner.slice(1, -1) : inner));
    this.#at = end + ticks.length;
    return undefined;
  }

  #newline() {
    this.#plain = this.#plain.replace(/ {1,8}$/, "");
    this.#push(h("br"));
    this.#at += 1;
  }

  #angle() {
    const at = this.#at;
    LINE_BREAK.lastIndex = ANGLE.lastIndex = at;
    if (LINE_BREAK.test(this.#text)) {
      this.#push(h("br"));
      this.#at = LINE_BREAK.lastIndex;
      return undefined;
    }
    const found = ANGLE.exec(this.#text);
    if (!found) return this.#literal("<");
    const address = found[1].includes(":") ? found[1] : `mailto:${found[1]}`;
    this.#push(...link(address, [found[1]]));
    this.#at = at + found[0].length;
    return undefined;
  }

  #bareUrl() {
    const before = this.#text[this.#at - 1];
    if (before !== undefined && WORD.test(before)) return false;
    if (this.#brackets.length > 1) return false; // the text of a link holds no other
    URL_START.lastIndex = this.#at;
    let address = URL_START.exec(this.#text)?.[0];
    if (!address) return false;
    const balanced = address.includes("(");
    while (".,;:!?'*_~]".includes(address.at(-1)) || (address.endsWith(")") && !balanced)) {
      address = address.slice(0, -1);
    }
    this.#push(...link(address, [address]));
    this.#at += address.length;
    return true;
  }

  // ---- emphasis ---------------------------------------------------------------------------------------------------

  get #scope() {
    return this.#frames[this.#brackets.at(-1)];
  }

  #mark(c) {
    const count = this.#run(c);
    const before = this.#text[this.#at - 1] ?? " ";
    const after = this.#text[this.#at + count] ?? " ";
    if (c === "~" && count !== 2) return this.#literal(c.repeat(count));
    const closes = !SPACE.test(before) && !(c === "_" && WORD.test(after));
    const opens = !SPACE.test(after) && !(c === "_" && WORD.test(before));
    this.#at += count;
    let left = count;
    while (closes && left > 0 && this.#scope.open[c]) left -= this.#close(c, left);
    if (left > 0 && opens && this.#frames.length < DEPTH) {
      this.#push();
      this.#scope.open[c] = (this.#scope.open[c] ?? 0) + 1;
      this.#frames.push({ kind: c, count: left, nodes: [] });
    } else {
      this.#plain += c.repeat(left);
    }
    return undefined;
  }

  /** Closes the nearest open mark by up to `most` of its characters, and returns how many. */
  #close(c, most) {
    let index = this.#frames.length - 1;
    while (this.#frames[index].kind !== c) index -= 1;
    this.#flatten(index);
    const frame = this.#frames[index];
    const used = Math.min(2, most, frame.count);
    const element = h(c === "~" ? "s" : used === 2 ? "strong" : "em", {}, frame.nodes);
    frame.count -= used;
    frame.nodes = [element];
    if (frame.count === 0) {
      this.#frames.pop();
      this.#scope.open[c] -= 1;
      this.#push(element);
    }
    return used;
  }

  /** Turns unclosed marks above a frame into text. */
  #flatten(index) {
    this.#push();
    const into = this.#frames[index].nodes;
    while (this.#brackets.at(-1) > index) this.#brackets.pop();
    let inBrackets = false;
    for (const frame of this.#frames.splice(index + 1)) {
      inBrackets ||= frame.kind.endsWith("["); // its marks are not counted further out
      if (!inBrackets) this.#scope.open[frame.kind] -= 1;
      into.push(frame.kind.repeat(frame.count));
      for (const node of frame.nodes) into.push(node);
    }
  }

  // ---- links ------------------------------------------------------------------------------------------------------

  #bracket(c) {
    const kind = c === "!" ? "![" : "[";
    if (this.#frames.length >= DEPTH) return this.#literal(kind);
    this.#push();
    this.#brackets.push(this.#frames.length);
    this.#frames.push({ kind, count: 1, nodes: [], open: {} });
    this.#at += kind.length;
    return undefined;
  }

  #closeBracket() {
    if (this.#brackets.length === 1) return this.#literal("]");
    const index = this.#brackets.at(-1);
    this.#flatten(index);
    const { kind, nodes } = this.#frames.pop();
    this.#brackets.pop();
    this.#at += 1;
    TARGET.lastIndex = this.#at;
    const found = TARGET.exec(this.#text);
    if (!found) {
      this.#push(kind);
      for (const node of nodes) this.#push(node);
      this.#push("]");
      return undefined;
    }
    this.#at += found[0].length;
    const children = kind === "![" ? ["Picture: ", ...nodes] : nodes;
    this.#push(...link(found[1] ?? found[2], children));
    return undefined;
  }
}

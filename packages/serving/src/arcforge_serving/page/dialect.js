/** What models write that is not in CommonMark, as rules of markdown-it: formulas, task lists, `<br>`, Chinese emphasis. */

const SCHEMES = ["http:", "https:", "mailto:"];
const SPACE = /\s/u;
const WORD = /[\p{L}\p{N}]/u;
const LINE_BREAK = /<br\s{0,9}\/?>/iy;
const TASK = /^\[([ xX])\] /;
const FORMULA = { $$: "$$", "\\[": "\\]" };
const INLINE_FORMULA = { ...FORMULA, "\\(": "\\)" };

/** Returns the reader with the rules added. */
export function asModelsWrite(reader) {
  reader.disable(["lheading"]); // a list that begins below a text would show as a heading until its first letter comes
  reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  reader.validateLink = isSafe;
  reader.inline.ruler.before("escape", "math", formula);
  reader.inline.ruler.before("html_inline", "line_break", lineBreak);
  reader.block.ruler.before("paragraph", "math", formulaBlock, { alt: ["paragraph"] });
  reader.core.ruler.after("inline", "tasks", tasks);
  reader.inline.State.prototype.scanDelims = scanDelims;
  return reader;
}

/** Whether following the address does no more than open a page or a letter. */
function isSafe(text) {
  try {
    return SCHEMES.includes(new URL(text).protocol);
  } catch {
    return false;
  }
}

/** Formulas stay as they are written: their stars and underscores are no emphasis. */
function formula(state, silent) {
  const begin = state.src.slice(state.pos, state.pos + 2);
  const close = INLINE_FORMULA[begin];
  if (!close) return false;
  const absent = (state.env.absent ??= new Map()); // what is missing once is missing in the rest: searched once
  if (absent.get(close) === state.src) return false;
  const found = state.src.indexOf(close, state.pos + 2);
  if (found < 0) absent.set(close, state.src);
  if (found < 0 || found + 2 > state.posMax) return false;
  if (!silent) state.push("math_inline", "", 0).content = state.src.slice(state.pos, found + 2);
  state.pos = found + 2;
  return true;
}

function lineBreak(state, silent) {
  LINE_BREAK.lastIndex = state.pos;
  if (!LINE_BREAK.test(state.src)) return false;
  if (!silent) state.push("hardbreak", "", 0);
  state.pos = LINE_BREAK.lastIndex;
  return true;
}

function lineOf(state, number) {
  return state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
}

/** A formula that begins a line; text after it on its last line makes it part of a paragraph. */
function formulaBlock(state, first, end, silent) {
  const begin = lineOf(state, first);
  const close = FORMULA[begin.slice(0, 2)];
  if (!close) return false;
  let last = first;
  let at = begin.indexOf(close, 2);
  while (at < 0 && last + 1 < end && state.sCount[last + 1] >= state.blkIndent) {
    last += 1;
    at = lineOf(state, last).indexOf(close);
  }
  if (at >= 0 && lineOf(state, last).slice(at + 2).trim() !== "") return false;
  if (silent) return true;
  const token = state.push("math_block", "", 0);
  token.content = state.getLines(first, last + 1, state.blkIndent, false);
  token.map = [first, last + 1];
  state.line = last + 1;
  return true;
}

/** Makes boxes of `[x] ` and `[ ] ` that begin the items of a list. */
function tasks({ tokens, Token }) {
  for (const [n, item] of tokens.entries()) {
    const text = item.type === "list_item_open" && tokens[n + 2]?.type === "inline" && tokens[n + 2].children[0];
    const task = text?.type === "text" && TASK.exec(text.content);
    if (!task) continue;
    text.content = text.content.slice(task[0].length);
    item.meta = { task: true };
    const box = new Token("task_box", "", 0);
    box.meta = { done: task[1] !== " " };
    tokens[n + 2].children.unshift(box);
  }
}

/**
 * Whether a run of marks opens or closes an emphasis. CommonMark asks for spaces or Western punctuation around it, which
 * Chinese and Japanese texts lack; here the side of the text must not be a space.
 */
function scanDelims(start, canSplitWord) {
  const mark = this.src[start];
  let end = start;
  while (end < this.posMax && this.src[end] === mark) end += 1;
  const before = this.src[start - 1] ?? " ";
  const after = end < this.posMax ? this.src[end] : " ";
  return {
    can_open: !SPACE.test(after) && (canSplitWord || !WORD.test(before)),
    can_close: !SPACE.test(before) && (canSplitWord || !WORD.test(after)),
    length: end - start,
  };
}

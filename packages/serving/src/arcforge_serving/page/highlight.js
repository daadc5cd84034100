/** Colours for code: comments, texts, numbers and keywords of the common languages, by one scan. */
import { h } from "./dom.js";

const words = (text) => new Set(text.split(" "));
const C_LIKE = { comment: ["//", "/*"], quotes: "\"'" };
const LANGUAGES = {
  python: {
    comment: ["#"], quotes: "\"'", triple: true,
    keywords: words("and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return True try while with yield case self"),
  },
  javascript: {
    ...C_LIKE, quotes: "\"'`",
    keywords: words("async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield"),
  },
  c: {
    ...C_LIKE,
    keywords: words("auto bool break case catch char class const constexpr continue default delete do double else enum extern false final float fn for func go if impl import int interface let long match mod mut namespace new nil null nullptr override package private protected pub public return self short signed sizeof static string struct super switch template this throw trait true try type typedef typename union unsigned use using var virtual void while"),
  },
  bash: {
    comment: ["#"], quotes: "\"'",
    keywords: words("case cd do done echo elif else esac exit export fi for function if in local return set source then unset while"),
  },
  sql: {
    comment: ["--", "/*"], quotes: "'\"", caseless: true,
    keywords: words("and as asc between by case create delete desc distinct drop else end exists from group having in index inner insert into is join left like limit not null on or order outer primary key references right select set table then union unique update values when where with"),
  },
  yaml: { comment: ["#"], quotes: "\"'", keywords: words("true false null yes no") },
  json: { comment: [], quotes: "\"", keywords: words("true false null") },
  css: { comment: ["/*"], quotes: "\"'", keywords: words("important from to and not") },
};
const SAME = {
  py: "python", python3: "python", js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript",
  typescript: "javascript", mjs: "javascript", cpp: "c", "c++": "c", cc: "c", h: "c", hpp: "c", cuda: "c", java: "c",
  kotlin: "c", swift: "c", csharp: "c", cs: "c", go: "c", rust: "c", rs: "c", php: "c", sh: "bash", shell: "bash",
  zsh: "bash", console: "bash", dockerfile: "bash", makefile: "bash", toml: "yaml", ini: "yaml", yml: "yaml",
  jsonc: "json", json5: "json", scss: "css",
};
const WORD = /[A-Za-z_$][\w$]*/y;
const NUMBER = /0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const LONGEST = 50000;

/** Returns the nodes of a piece of code; plain text where the language is unknown or the code very long. */
export function highlight(code, language) {
  const name = language.toLowerCase();
  const rules = LANGUAGES[SAME[name] ?? name];
  return rules && Object.hasOwn(LANGUAGES, SAME[name] ?? name) && code.length <= LONGEST ? scan(code, rules) : [code];
}

function scan(code, rules) {
  const nodes = [];
  let plain = "";
  const push = (kind, text) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(h("span", { class: `code-${kind}` }, text));
    return text.length;
  };
  for (let at = 0; at < code.length; ) {
    const begin = rules.comment.find((each) => code.startsWith(each, at));
    const c = code[at];
    WORD.lastIndex = NUMBER.lastIndex = at;
    const word = WORD.exec(code)?.[0];
    const number = word ? null : NUMBER.exec(code)?.[0];
    if (begin) at += push("comment", code.slice(at, endOfComment(code, at, begin)));
    else if (rules.quotes.includes(c)) at += push("text", code.slice(at, endOfText(code, at, rules)));
    else if (number) at += push("number", number);
    else if (word && rules.keywords.has(rules.caseless ? word.toLowerCase() : word)) at += push("keyword", word);
    else {
      plain += word ?? c;
      at += (word ?? c).length;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function endOfComment(code, at, begin) {
  const end = code.indexOf(begin === "/*" ? "*/" : "\n", at + begin.length);
  if (end < 0) return code.length;
  return begin === "/*" ? end + 2 : end;
}

function endOfText(code, at, rules) {
  const quote = code[at];
  const triple = quote.repeat(3);
  if (rules.triple && code.startsWith(triple, at)) {
    const end = code.indexOf(triple, at + 3);
    return end < 0 ? code.length : end + 3;
  }
  for (let end = at + 1; end < code.length; end += 1) {
    if (code[end] === "\\") end += 1;
    else if (code[end] === quote) return end + 1;
    else if (code[end] === "\n" && quote !== "`") return end;
  }
  return code.length;
}

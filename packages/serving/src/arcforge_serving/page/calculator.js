/** A calculator whose calls the page itself answers. Whole numbers are exact; results read as in Python. */

export const NAME = "calculator";
export const DEFINITION = {
  type: "function",
  function: {
    name: NAME,
    description: "Computes an expression of numbers.",
    parameters: { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] },
  },
};
const TOKEN = /\s*(?:((?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)|(\d+)|(\/\/|[-+*/%()]))/y;
const LONGEST = 1000;
const WRONG = "Error: only numbers and + - * / // % are understood";

/** Returns the result of a call as the model reads it; mistakes are texts too. */
export function compute(text) {
  try {
    const tokens = split(String(text ?? ""));
    const value = sum(tokens);
    if (tokens.length) throw new SyntaxError("something is left over");
    return typeof value === "bigint" ? String(value) : shown(value);
  } catch (error) {
    if (error instanceof RangeError) return "Error: division by zero";
    return WRONG;
  }
}

/** Returns whether every call is one that the page answers. */
export function answers(calls) {
  return calls.length > 0 && calls.every((call) => call.function.name === NAME);
}

/** Returns the result of a call of the API. */
export function answer(call) {
  try {
    return compute(JSON.parse(call.function.arguments).expression);
  } catch {
    return WRONG;
  }
}

function split(text) {
  if (text.length > LONGEST) throw new SyntaxError("too long");
  const tokens = [];
  TOKEN.lastIndex = 0;
  for (let rest = text.trimEnd().length; TOKEN.lastIndex < rest; ) {
    const found = TOKEN.exec(text);
    if (!found) throw new SyntaxError("no number and no sign");
    const [, decimal, whole, sign] = found;
    tokens.push(decimal ? Number(decimal) : whole ? BigInt(whole) : sign);
  }
  return tokens;
}

function sum(tokens) {
  let value = product(tokens);
  while (tokens[0] === "+" || tokens[0] === "-") value = apply(tokens.shift(), value, product(tokens));
  return value;
}

function product(tokens) {
  let value = factor(tokens);
  while (["*", "/", "//", "%"].includes(tokens[0])) value = apply(tokens.shift(), value, factor(tokens));
  return value;
}

function factor(tokens) {
  const token = tokens.shift();
  if (token === "-") return -factor(tokens);
  if (token === "(") {
    const value = sum(tokens);
    if (tokens.shift() !== ")") throw new SyntaxError("a parenthesis is not closed");
    return value;
  }
  if (typeof token === "string" || token === undefined) throw new SyntaxError("a number is missing");
  return token;
}

function apply(sign, left, right) {
  const whole = typeof left === "bigint" && typeof right === "bigint";
  if ("//%".includes(sign) && Number(right) === 0) throw new RangeError("division by zero");
  if (!whole || sign === "/") [left, right] = [Number(left), Number(right)];
  if (sign === "+") return left + right;
  if (sign === "-") return left - right;
  if (sign === "*") return left * right;
  if (sign === "/") return left / right;
  const floor = whole ? (left - ((left % right) + right) % right) / right : Math.floor(left / right);
  return sign === "//" ? floor : left - floor * right;
}

function shown(value) {
  const text = String(value);
  return Number.isInteger(value) && !text.includes("e") ? `${text}.0` : text;
}

/** The fields of requests that people may set, and what they may hold; an empty field is the server's default. */
import { h } from "./dom.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: "any", hint: "1", tip: "0 always takes the likeliest" },
  { name: "top_p", label: "Top-p", min: 0.01, max: 1, step: "any", hint: "1", tip: "Share of the mass kept" },
  { name: "top_k", label: "Top-k", min: 0, step: 1, hint: "all", tip: "Most likely tokens kept" },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: "any", hint: "0", tip: "Least share of the likeliest" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, hint: "as fit", tip: "Length of an answer" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "random", tip: "Equal seeds give equal answers" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.1, max: 5, step: "any", hint: "1" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any", hint: "0" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any", hint: "0" },
];
const STOPS = 16;

/** Returns inputs for the fields; `changed` is called with a new object whenever one of them holds something right. */
export function samplingInputs(prefix, values, changed) {
  const rows = FIELDS.map(({ name, label, hint, tip, ...limits }) => {
    const id = `${prefix}-${name}`;
    const note = h("span", { class: "note", id: `${id}-note` }, tip ?? "");
    const input = h("input", {
      id, type: "number", inputmode: "decimal", placeholder: hint, value: values()[name] ?? "", ...limits,
      "aria-describedby": note.id,
      oninput: () => {
        const fits = input.validity.valid;
        input.setAttribute("aria-invalid", String(!fits));
        note.textContent = fits ? (tip ?? "") : rangeOf(limits);
        note.classList.toggle("wrong", !fits);
        if (fits) changed(withField(values(), name, input.value === "" ? undefined : input.valueAsNumber));
      },
    });
    return h("div", { class: "field" }, h("label", { for: id }, label), input, note);
  });
  return [...rows, stopField(prefix, values, changed)];
}

function rangeOf({ min, max, step }) {
  const kind = step === 1 ? "A whole number" : "A number";
  return max === undefined ? `${kind} from ${min} on` : `${kind} from ${min} to ${max}`;
}

function withField(values, name, value) {
  const { [name]: _, ...others } = values;
  return value === undefined ? others : { ...others, [name]: value };
}

function stopField(prefix, values, changed) {
  const id = `${prefix}-stop`;
  const area = h("textarea", {
    id, rows: 2, placeholder: "none", "aria-describedby": `${id}-note`,
    oninput: () => {
      const stops = area.value.split("\n").filter((line) => line !== "").slice(0, STOPS);
      changed(withField(values(), "stop", stops.length ? stops : undefined));
    },
  });
  area.value = (values().stop ?? []).join("\n");
  const note = h("span", { class: "note", id: `${id}-note` }, "Texts that end an answer, one in each line");
  return h("div", { class: "field wide" }, h("label", { for: id }, "Stop"), area, note);
}

/** Returns the tools that a text defines: a list of definitions as in OpenAI's API, or of bare functions. */
export function parseTools(text) {
  if (!text.trim()) return [];
  let given;
  try {
    given = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
  const list = Array.isArray(given) ? given : [given];
  return list.map((each, n) => {
    const tool = each?.type === "function" ? each : { type: "function", function: each };
    if (typeof tool.function?.name !== "string") throw new Error(`Tool ${n + 1} has no name.`);
    return tool;
  });
}

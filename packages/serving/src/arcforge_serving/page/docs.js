/** Draws openapi.json: routes, their parameters and bodies, and schemas that unfold when they are opened. */

import { byId, h } from "./dom.js";

const KEYWORDS = ["default", "const", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength",
  "maxLength", "minItems", "maxItems", "pattern"];

/** Returns the schema that a reference names, or the schema itself. */
export function resolved(schema, root) {
  const path = schema?.$ref?.split("/").slice(1) ?? [];
  return path.length ? path.reduce((place, name) => place?.[name], root) ?? {} : schema ?? {};
}

const nameOf = (schema) => schema.$ref?.split("/").pop();

/** Returns the type of a schema in a few words. */
export function typeOf(schema) {
  const found = nameOf(schema) ?? schema.type;
  if (found === "array") return `list of ${typeOf(schema.items ?? {})}`;
  if (found) return String(found);
  const choices = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (choices) return choices.map(typeOf).join(" | ");
  return schema.enum ? "one of" : "any";
}

function limits(schema) {
  const given = KEYWORDS.filter((word) => word in schema).map((word) => `${word} ${JSON.stringify(schema[word])}`);
  return [...(schema.enum ? [schema.enum.map((value) => JSON.stringify(value)).join(", ")] : []), ...given].join("; ");
}

/** Returns the schemas inside a type that have fields to show. */
function inside(schema, root) {
  const found = resolved(schema, root);
  if (found.properties) return [found];
  return [found.items, ...(found.anyOf ?? []), ...(found.oneOf ?? []), ...(found.allOf ?? [])]
    .filter((part) => part && part !== schema).flatMap((part) => inside(part, root));
}

/** A folded element whose contents are made when it is first opened: schemas may contain themselves. */
function folded(summary, contents, attributes = {}) {
  const unfold = (event) => {
    const { target } = event;
    if (target.open && target.children.length === 1) target.append(...contents());
  };
  return h("details", { ...attributes, ontoggle: unfold }, h("summary", {}, ...summary));
}

function field(name, schema, required, root) {
  const { description, title, ...rest } = { ...resolved(schema, root), ...schema };
  const line = [
    h("code", {}, name), required ? "* " : " ", h("span", { class: "note" }, typeOf(schema), " ", limits(rest)),
    description ? h("div", { class: "note" }, description) : null,
  ];
  const parts = inside(schema, root);
  return h("li", {}, parts.length ? folded(line, () => parts.map((part) => fields(part, root))) : line);
}

function fields(schema, root) {
  const required = schema.required ?? [];
  const entries = Object.entries(schema.properties ?? {});
  return h("ul", {}, entries.map(([name, part]) => field(name, part, required.includes(name), root)));
}

function contents(media, root) {
  return Object.entries(media ?? {}).flatMap(([type, { schema = {} }]) => [
    h("p", { class: "note" }, `${type}: ${typeOf(schema)}`), ...inside(schema, root).map((part) => fields(part, root)),
  ]);
}

function route(path, method, operation, root) {
  const parameters = operation.parameters ?? [];
  const title = [h("span", { class: "method" }, method), path, " ", h("span", { class: "note" }, operation.summary ?? "")];
  return folded(title, () => [
    operation.description ? h("p", {}, operation.description) : "",
    ...(parameters.length ? [h("h2", {}, "Parameters"), h("ul", {}, parameters.map((each) =>
      field(`${each.name} (${each.in})`, each.schema ?? {}, each.required, root)))] : []),
    ...(operation.requestBody ? [h("h2", {}, "Body"), ...contents(operation.requestBody.content, root)] : []),
    h("h2", {}, "Replies"),
    ...Object.entries(operation.responses ?? {}).map(([status, reply]) =>
      folded([h("code", {}, status), " ", h("span", { class: "note" }, reply.description ?? "")],
        () => contents(reply.content, root))),
  ], { class: "route", id: operation.operationId });
}

async function show() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: status ${response.status}`);
  const root = await response.json();
  byId("title").textContent = `${root.info.title} ${root.info.version}`;
  byId("routes").append(...Object.entries(root.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => route(path, method, operation, root))));
}

show().catch((error) => {
  byId("wrong").textContent = `The API's description cannot be shown: ${error.message}`;
  byId("wrong").hidden = false;
});

/** Conversations as files. */
import { path } from "./tree.js";

/** Returns the shown conversation and its settings as JSON: messages as in the API, with figures. */
export function asJson(conversation, model) {
  const messages = path(conversation).map(({ role, content, reasoning, calls, call, name, finish, stats, created }) => ({
    role,
    content,
    ...(reasoning ? { reasoning_content: reasoning } : {}),
    ...(calls?.length ? { tool_calls: calls } : {}),
    ...(call ? { tool_call_id: call, name } : {}),
    ...(finish ? { finish_reason: finish } : {}),
    ...(stats ? { stats } : {}),
    created: new Date(created).toISOString(),
  }));
  const { title, settings } = conversation;
  return JSON.stringify({ title, model: model.name, settings, messages }, null, 2);
}

const HEADINGS = { user: "You", assistant: "Answer", tool: "Result" };

/** Returns the shown conversation as Markdown; reasoning is folded. */
export function asMarkdown(conversation, model) {
  const { title, settings } = conversation;
  const parts = [`# ${title || "Conversation"}`, `Model: ${model.name}`];
  if (settings.system.trim()) parts.push("## System", settings.system.trim());
  for (const { role, content, reasoning, calls, name } of path(conversation)) {
    parts.push(`## ${HEADINGS[role]}${role === "tool" && name ? ` of ${name}` : ""}`);
    if (reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${reasoning.trim()}\n\n</details>`);
    if (content) parts.push(role === "tool" ? fenced(content, "") : content.trim());
    for (const call of calls ?? []) parts.push(`Calls \`${call.function.name}\`:`, fenced(call.function.arguments, "json"));
  }
  return `${parts.join("\n\n")}\n`;
}

/** Puts a text between fences that are longer than any in it. */
function fenced(text, language) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

/** Returns a file's name. */
export function fileName(conversation, kind) {
  const words = (conversation.title || "conversation").toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["conversation"];
  return `${words.join("-").slice(0, 50)}.${kind}`;
}

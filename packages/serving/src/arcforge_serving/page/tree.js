/**
 * A conversation: a tree of messages of which one path is shown. Editing a message or asking for another answer begins
 * a branch, so that nothing that was said is lost.
 */

export function newConversation(settings) {
  const now = Date.now();
  return { version: 1, id: newId(), title: "", created: now, updated: now, settings, nodes: {}, leaf: null };
}

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join("");
}

/** Adds a message after another one (null: at the start) and shows it. */
export function add(conversation, parent, message) {
  const node = { id: newId(), parent, created: Date.now(), ...message };
  conversation.nodes[node.id] = node;
  choose(conversation, node);
  conversation.leaf = node.id;
  conversation.updated = node.created;
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node.content);
  return node;
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 57)}...` : line;
}

/** Returns the messages that are shown, in order. */
export function path(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) found.push(node);
  return found.reverse();
}

/** Returns the alternatives of a message, itself included, oldest first. */
export function siblings(conversation, node) {
  return Object.values(conversation.nodes).filter((each) => each.parent === node.parent);
}

/** Shows the branch of a message, as far as it was followed last. */
export function show(conversation, node) {
  choose(conversation, node);
  let leaf = node;
  while (conversation.nodes[leaf.next]) leaf = conversation.nodes[leaf.next];
  conversation.leaf = leaf.id;
}

/** Records which of the messages after another one was seen last. */
function choose(conversation, node) {
  const before = conversation.nodes[node.parent];
  if (before) before.next = node.id;
}

/** Returns a path as the API wants it; answers of which nothing came are left out. */
export function messagesOf(nodes, system) {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const { role, content, reasoning, calls, call } of nodes) {
    if (role === "assistant" && !content && !reasoning && !calls?.length) continue;
    const message = { role, content };
    if (reasoning) message.reasoning_content = reasoning;
    if (calls?.length) message.tool_calls = calls;
    if (call) message.tool_call_id = call;
    messages.push(message);
  }
  return messages;
}

/** Returns the calls of the last answer that have no result yet. */
export function openCalls(conversation) {
  const node = conversation.nodes[conversation.leaf];
  return node?.role === "assistant" && !node.running ? (node.calls ?? []) : [];
}

"""The lines that a session writes to its file, and the session that they give back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import Message, OpenTurn, ToolCall
from arcforge_core.contracts.experts import experts_json, experts_of
from arcforge_core.contracts.sessions import TurnRecord
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.imposed import Imposed
from arcforge_serving.gateway.replies import Reply
from arcforge_serving.gateway.tree import Node, SessionTree

Line = dict[str, Any]
PROCESS = {"sessions", "log", "memory_mb"}
"""Options that are the process's, not a session's."""


# ---- the session -----------------------------------------------------------------------------------------------------


def session_line(opened: float, limits: GatewayConfig, imposed: Imposed, digest: bytes, **further: Any) -> Line:
    """Returns a session's own line.

    Args:
        opened: seconds since 1970.
        limits, imposed: its options.
        digest: of its secret.
        further: its id, owner and metadata.
    """
    options = {"limits": asdict(limits), "imposed": asdict(imposed)}
    return {"opened": opened, "secret": digest.hex(), **options, **further}


def limits_of(line: Mapping[str, Any], config: GatewayConfig) -> GatewayConfig:
    """Returns the options of a session that was written, those of the process (`config`) excepted."""
    own = {each.name for each in fields(GatewayConfig)} - PROCESS
    process = {name: getattr(config, name) for name in PROCESS}
    return GatewayConfig(**process, **{name: line["limits"][name] for name in own})


# ---- turns -----------------------------------------------------------------------------------------------------------


def turn_line(turn: TurnRecord, is_final: bool, node: Node | None = None, chain: bytes = b"") -> Line:
    """Returns the line of a turn; with its node if it has one, and the chain of the messages before the reply."""
    line: Line = {"turn": asdict(turn), "final": is_final}
    if node is not None:
        line["node"] = _written(node, chain)
    return line


def _written(node: Node, chain: bytes) -> Line:
    columns, turn, parent = node.tokens, node.turn, node.parent
    line: Line = {
        "parent": None if parent is None else parent.number,
        "keep": node.keep,
        "asked": chain.hex(),
        "read": columns.ids[: node.read].tolist(),
        "sampled": columns.ids[node.read :].tolist(),
        "logprobs": columns.logprobs[node.read :].tolist(),
        "versions": columns.versions[node.read :].tolist(),
        "reply": _message(node.reply),
        "thought": turn.thought,
        "thinking": turn.thinking,
    }
    if parent is None or parent.turn.tools != turn.tools:
        line["tools"] = turn.tools
    if columns.experts is not None:
        before = columns.experts[:0] if node.before is None else node.before
        line["experts"] = experts_json(np.concatenate([before, columns.experts]))
    return line


def _message(reply: Message) -> Line:
    calls = [[call.name, dict(call.arguments), call.id] for call in reply.tool_calls]
    return {"content": reply.content, "reasoning": reply.reasoning, "calls": calls}


def restore_turn(tree: SessionTree, line: Line) -> TurnRecord:
    """Adds the node of a line to a tree, if it has one; returns the turn.

    Raises:
        KeyError, IndexError, TypeError, ValueError: the line is malformed.
    """
    if (given := line.get("node")) is not None:
        parent = None if given["parent"] is None else tree.nodes[given["parent"]]
        tokens = Branch(str(len(tree.nodes)))
        tokens.read(given["read"])
        tokens.sample(given["sampled"], given["logprobs"], given["versions"])
        tools = given["tools"] if parent is None else given.get("tools", parent.turn.tools)
        turn = OpenTurn(tools, given["thought"], given["thinking"], tuple(given["sampled"]))
        calls = tuple(ToolCall(*call) for call in given["reply"]["calls"])
        reply = Message("assistant", given["reply"]["content"], given["reply"]["reasoning"], calls)
        node = Node(len(tree.nodes), parent, given["keep"], tokens, len(given["read"]), reply, turn)
        if "experts" in given:
            node.route(experts_of(given["experts"]))
        tree.add(node, bytes.fromhex(given["asked"]))
    return TurnRecord(**line["turn"])


# ---- replies ---------------------------------------------------------------------------------------------------------


def reply_line(key: bytes, reply: Reply) -> Line:
    """Returns the line of a whole reply."""
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in reply.start["headers"]]
    body = bytes(reply.body).decode("utf-8", "surrogateescape")
    return {"reply": [key.hex(), reply.digest.hex(), reply.start["status"], headers, body]}


def restored_reply(line: Line) -> tuple[bytes, Reply]:
    """Returns a key and the reply to its request.

    Raises:
        TypeError, ValueError: the line is malformed.
    """
    key, digest, status, headers, body = line["reply"]
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
    }
    reply = Reply(bytes.fromhex(digest), start, bytearray(body.encode("utf-8", "surrogateescape")))
    return bytes.fromhex(key), reply

"""Messages that are copies of a reply, strictly and loosely, and the keys of their chains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcforge_core.contracts.chat import Message
from arcforge_serving.gateway import keys
from arcforge_serving.gateway.tree import SessionTree
from support.sessions import (
    CALL,
    TEMPLATE,
    THINKS,
    TOOL,
    Client,
    said,
    tool,
    user,
)

A, B = user("one"), user("two")


def called(**changes) -> tuple[Client, Message]:
    of = Client(SessionTree(TEMPLATE, **changes))
    _, reply = of.ask([A], "r</think>" + CALL + "<|observation|>", [TOOL], THINKS)
    return of, reply


def with_arguments(reply: Message, arguments: dict[str, object]) -> Message:
    return replace(reply, tool_calls=(replace(reply.tool_calls[0], arguments=arguments),))


@pytest.mark.parametrize(
    ("copy_of", "strictly", "loosely"),
    [
        (lambda reply: reply, True, True),
        (lambda reply: replace(reply, tool_calls=(replace(reply.tool_calls[0], id="call_1"),)), True, True),
        (lambda reply: replace(reply, reasoning=" r\n"), True, True),  # it is rendered as the same tokens
        (lambda reply: with_arguments(reply, {"n": 3, "a": "one"}), False, True),
        (lambda reply: with_arguments(reply, {"a": "one", "n": 3.0}), False, True),
        (lambda reply: replace(reply, reasoning=None), False, True),
        (lambda reply: replace(reply, reasoning="", content=" "), False, True),
        (lambda reply: replace(reply, reasoning="other"), False, False),
        (lambda reply: with_arguments(reply, {"a": "two", "n": 3}), False, False),
        (lambda reply: with_arguments(reply, {"a": "one"}), False, False),
        (lambda reply: replace(reply, content="more"), False, False),
        (lambda reply: replace(reply, tool_calls=()), False, False),
    ],
)
@pytest.mark.parametrize("match", ["strict", "loose"])
def test_copies_of_a_reply(match: str, copy_of, strictly: bool, loosely: bool) -> None:
    of, reply = called(match=match, fork_threshold_tokens=0)
    at, _ = of.ask([A, copy_of(reply), tool("x")], "s</think>two<|user|>", [TOOL], THINKS)
    assert (at.parent is of.tree.nodes[0]) == (strictly if match == "strict" else loosely)
    assert (at.drift == "clean") == (at.parent is not None)
    of.check()


def test_chains_tell_messages_apart() -> None:
    seed = keys.seed_of([])
    messages = [A, Message("system", "one"), said("one"), tool("one"), user("one "), user("on")]
    assert len({keys.link(seed, message, "strict") for message in messages}) == len(messages)
    assert keys.link(seed, A, "loose") == keys.link(seed, user(" one\n"), "loose")
    assert keys.link(keys.link(seed, A, "loose"), B, "loose") != keys.link(keys.link(seed, B, "loose"), A, "loose")
    assert keys.seed_of([TOOL]) != seed

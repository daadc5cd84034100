"""Messages that a session remembers: each is read once, and nothing is accepted that was refused at first."""

from __future__ import annotations

import gc
import json
from collections import Counter

import pytest

from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway import keys
from arcforge_serving.gateway.app import gateway_app
from arcforge_serving.gateway.session import AgentSession, Turn
from arcforge_serving.gateway.tree import Node
from arcforge_serving.server.anthropic.request import AssistantMessage, UserMessage
from arcforge_serving.server.openai import messages as openai_messages
from arcforge_serving.server.openai.messages import ChatMessage
from arcforge_serving.server.responses.items import CallItem, ResultItem
from arcforge_serving.server.shared.generation import Generation
from arcforge_serving.server.shared.memories import Memories
from arcforge_serving.server.shared.memory import OBJECT_BYTES, Memory, remembering
from serving.gateway.conftest import QUIET, script
from serving.gateway.test_http import ONE, TOOL, ask, more, record
from support.servers import client_of, scripted_state
from support.sessions import TOKENIZER
from support.waiting import wait_until

TURNS = 12
SCHEMA = {"type": "object"}


def chat_turn(http, base, messages):
    reply = http.post(
        f"{base}/chat/completions", json={"messages": messages, "tools": [TOOL], "max_tokens": 40, **QUIET}
    )
    messages.append(reply.json()["choices"][0]["message"])
    messages.append({"role": "user", "content": f"plain {len(messages)}"})


def messages_turn(http, base, messages):
    fields = {
        "model": "small",
        "messages": messages,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "max_tokens": 40,
    }
    messages.append(
        {"role": "assistant", "content": http.post(f"{base}/messages", json=fields | QUIET).json()["content"]}
    )
    messages.append({"role": "user", "content": [{"type": "text", "text": f"plain {len(messages)}"}]})


def responses_turn(http, base, messages):
    tools = [{"type": "function", "name": "f", "parameters": SCHEMA}]
    fields = {"input": messages, "tools": tools, "max_output_tokens": 40, "store": False}
    messages.extend(http.post(f"{base}/responses", json=fields | QUIET).json()["output"])
    messages.append({"role": "user", "content": f"plain {len(messages)}"})


@pytest.fixture
def work(monkeypatch):
    """Counts of the work on single messages."""
    found = Counter()

    def counted(module, name):
        inner = getattr(module, name)

        def outer(*given):
            found[name] += 1
            return inner(*given)

        monkeypatch.setattr(module, name, outer)

    counted(openai_messages, "message_from_openai")
    counted(keys, "_written")
    parsed = Memory.parsed

    def remembered(self, kind, given, parse):
        def noted(value):
            found[f"parse {kind.__name__}"] += 1
            return parse(value)

        found["asked"] += 1
        return parsed(self, kind, given, noted)

    monkeypatch.setattr(Memory, "parsed", remembered)
    return found


@pytest.mark.parametrize("turn", [chat_turn, messages_turn, responses_turn])
def test_each_message_of_a_session_is_read_once(http, opened, work, turn):
    messages = [{"role": "user", "content": "plain"}]
    for _ in range(TURNS):
        turn(http, f"/sessions/{opened['id']}/v1", messages)
    assert [each.drift for each in record(http, opened).turns] == ["new", *["clean"] * (TURNS - 1)]
    distinct = TURNS + 1  # the user's, and one reply over and over; each turn sends all before it, in all TURNS * TURNS
    assert work["asked"] >= TURNS * TURNS
    assert work["parse ChatMessage"] == work["message_from_openai"] == distinct
    assert work["_written"] == distinct + TURNS  # and the replies as they were sampled
    assert max(count for name, count in work.items() if name.startswith("parse")) < 2 * TURNS


@pytest.mark.parametrize("turn", [chat_turn, messages_turn, responses_turn])
def test_turns_and_closed_sessions_are_freed_without_a_garbage_collection(http, turn):
    def alive():  # a thread drops what it has passed on a moment later
        return Counter(type(each) for each in gc.get_objects() if type(each) in (AgentSession, Turn, Node, Generation))

    gc.collect()
    gc.disable()
    try:
        before = alive()
        opened, messages = http.post("/sessions", json={}).json(), [{"role": "user", "content": "plain"}]
        for _ in range(3):
            turn(http, f"/sessions/{opened['id']}/v1", messages)
        wait_until(lambda: alive() == before + Counter({AgentSession: 1, Node: 3}))
        http.delete(f"/sessions/{opened['id']}")
        wait_until(lambda: alive() == before)
    finally:
        gc.enable()


def test_outside_of_sessions_nothing_is_remembered(http, work):
    for _ in range(2):
        assert http.post("/v1/chat/completions", json=ONE).status_code == 200
    assert not work["asked"] and work["message_from_openai"] == 2


def parsed(memory, kind, text):
    with remembering(memory):
        return kind.model_validate(json.loads(text))


def test_equal_values_of_other_types_are_other_parts():
    call = '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": %s, "b": 2}}}]}'
    memory = Memory()
    found = {text: parsed(memory, ChatMessage, call % text) for text in ("1", "1.0", "true", '"1"')}
    for text, message in found.items():
        (again,) = message.tool_calls
        assert type(again.function.arguments["a"]) is type(json.loads(text))
        assert parsed(memory, ChatMessage, call % text) is message
    swapped = parsed(memory, ChatMessage, call.replace('"a": %s, "b": 2', '"b": 2, "a": 1'))
    assert list(swapped.tool_calls[0].function.arguments) == ["b", "a"]


def test_wrong_parts_are_refused_again():
    memory = Memory()
    good = '{"role": "user", "content": "x", "tool_calls": [{"index": 1, "function": {"name": "f"}}]}'
    parsed(memory, ChatMessage, good)
    for wrong in (good.replace("1", "true"), good.replace("1", "1.5"), '{"role": "robot"}', '{"content": "\\ud800"}'):
        for _ in range(2):
            with pytest.raises(ValueError, match="ChatMessage"):
                parsed(memory, ChatMessage, wrong)
    assert len(memory) == 1


def test_classes_do_not_share_parts():
    memory = Memory()
    text = '{"role": "user", "content": "x"}'
    kinds = [ChatMessage, UserMessage]
    assert [type(parsed(memory, kind, text)) for kind in kinds * 2] == kinds * 2
    for kind in (AssistantMessage, CallItem, ResultItem):
        with pytest.raises(ValueError, match=kind.__name__):
            parsed(memory, kind, text)


def test_classes_whose_names_begin_alike_do_not_share_parts():
    class AssistantMessageOfLater(AssistantMessage):
        """As a subclass of a plugin may be called."""

    memory, text = Memory(), '{"role": "assistant", "content": "x"}'
    kinds = [AssistantMessage, AssistantMessageOfLater]
    assert [type(parsed(memory, kind, text)) for kind in kinds * 2] == kinds * 2


def test_a_memory_is_bounded():
    shared = Memories(10 * OBJECT_BYTES)
    memory = Memory(shared)
    for n in range(100):
        parsed(memory, ChatMessage, json.dumps({"role": "user", "content": str(n)}))
        assert shared.bytes <= shared.most_bytes
    assert 5 < len(memory) < 10 and shared.forgotten == 100 - len(memory)
    parsed(memory, ChatMessage, json.dumps({"role": "user", "content": "x" * 11 * OBJECT_BYTES}))
    assert 5 < len(memory) < 10, "a part that is larger than all displaces none"


def test_sessions_share_the_bound_and_the_least_recently_used_parts_go():
    shared = Memories(10 * OBJECT_BYTES)
    idle, busy, third = (Memory(shared) for _ in range(3))
    texts = [json.dumps({"role": "user", "content": str(n)}) for n in range(4)]
    first = [parsed(memory, ChatMessage, text) for memory in (idle, busy) for text in texts]
    assert (len(idle), len(busy)) == (4, 4) and first[0] is not first[4]  # the parts themselves are not shared
    parsed(busy, ChatMessage, texts[0])
    for text in texts[:3]:
        parsed(third, ChatMessage, text)
    assert (len(idle), len(busy), len(third)) == (2, 4, 3)
    assert parsed(busy, ChatMessage, texts[0]) is first[4]
    assert parsed(idle, ChatMessage, texts[0]) == first[0]  # parsed again
    before = shared.bytes
    busy.close()
    assert len(busy) == 0 and shared.bytes < before
    third.close()
    idle.close()
    assert shared.bytes == 0


@pytest.mark.parametrize(("option", "parses"), [(0, 3), (1, 2)])
def test_the_option_bounds_all_sessions_and_the_page_shows_it(work, option, parses):
    state = scripted_state(TOKENIZER, script)
    with client_of(state, gateway_app(state, GatewayConfig(sessions=2, memory_mb=option))) as http:
        opened = http.post("/sessions", json={}).json()
        reply = ask(http, opened)
        page = http.get("/metrics").text
        assert ask(http, opened, more(ONE, reply)).status_code == 200
        figures = [
            float(line.split()[-1]) for line in page.splitlines() if line.startswith("arcforge:gateway_memory_b")
        ]
        assert (figures[0] > 0) == bool(option)
        assert work["parse ChatMessage"] == 1 + parses
        http.delete(f"/sessions/{opened['id']}")
        assert 'arcforge:gateway_memory_bytes{model_name="small"} 0.0' in http.get("/metrics").text


def test_a_field_that_has_the_name_of_ours_is_the_clients(http, opened):
    content = [{"type": "text", "text": "plain", "without_effect": [1], "message": 2}]
    message = {"role": "user", "content": content, "without_effect": 3, "message": {"x": 4}, "rendered": 5}
    for _ in range(2):
        reply = ask(http, opened, {**ONE, "messages": [message]})
        assert reply.status_code == 200
        names = ("content.message", "content.without_effect", "message", "rendered", "without_effect")
        assert reply.headers["x-ignored-fields"] == ", ".join(f"messages.{name}" for name in names)

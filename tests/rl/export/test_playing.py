"""The solver of an exported environment asks a server, whose refusals are limits and whose faults are failures."""

import asyncio
import json

import pytest

from arcforge_core.contracts.chat import ChatOptions, Message, Tool, ToolCall
from arcforge_core.contracts.environment import EpisodeFailure, Reply
from arcforge_rl.endpoints import JsonServer
from arcforge_rl.export.playing import ServedSolver, company
from support.listening import listening
from support.oracle_server import completion

ASKED = [Message("user", "a?")]
ADD = Tool({"name": "add", "parameters": {"type": "object"}})


def solved(answers, messages=ASKED, tools=(), ended=False, system="", options=None):
    """Returns the reply, the requests and their idempotency keys; the last answer is repeated."""
    bodies, keys = [], []

    def post(request):
        bodies.append(request.body())
        keys.append(request.headers["idempotency-key"])
        request.answer(*answers[min(len(bodies), len(answers)) - 1])

    with listening(post) as url:
        solver = ServedSolver(JsonServer(f"{url}/v1", "key", 5.0, 3), "m", "one", lambda: ended, system)
        reply = asyncio.run(solver.reply(messages, tools, options))
    return reply, bodies, keys


def test_a_turn_with_tools():
    said = Reply("", calls=(ToolCall("add", {"x": 1}),))
    reply, (body,), _ = solved([(200, completion(said))], tools=[ADD])
    assert reply.calls == (ToolCall("add", {"x": 1}, "call_0_0"),)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "a?"}],
        "tools": [{"type": "function", "function": ADD.definition}],
    }


def test_a_request_that_is_repeated_keeps_its_name(monkeypatch):
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.0)
    reply, bodies, keys = solved([(503, {}), (200, completion(Reply("4")))])
    assert reply.text == "4" and bodies[0] == bodies[1] and keys == ["one-0", "one-0"]


@pytest.mark.parametrize("text", ["This model's maximum context length is 9 tokens", "code: context_length_exceeded"])
def test_no_room_is_a_reply_that_was_cut_off(text):
    assert solved([(400, {"error": text})])[0] == Reply(finish_reason="length")


def test_a_rollout_that_was_ended_gets_no_further_turn():
    assert solved([(400, {"error": "rollout stopped: max_turns"})], ended=True)[0] == Reply(finish_reason="length")


@pytest.mark.parametrize(
    "answer", [(400, {"error": "no such model"}), (200, {"choices": []}), (200, completion(Reply("", (), (), "abort")))]
)
def test_other_refusals_are_failures(answer):
    with pytest.raises(EpisodeFailure) as caught:
        solved([answer])
    assert caught.value.failure.kind == "engine"


@pytest.mark.parametrize("arguments", ["{nonsense", "[1]", '"text"'])
def test_calls_that_cannot_be_read_are_left_out(arguments):
    answer = completion(Reply("well", calls=(ToolCall("add", {}), ToolCall("add", {"x": 2}))))
    answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
    assert [call.arguments for call in solved([(200, answer)])[0].calls] == [{"x": 2}]


def test_the_system_text_comes_first():
    own = [Message("system", "Be brief."), *ASKED]
    for messages, wanted in ((ASKED, "Rules."), (own, "Rules.\n\nBe brief.")):
        _, (body,), _ = solved([(200, completion(Reply("4")))], messages, system="Rules.")
        assert [one["content"] for one in body["messages"]] == [wanted, "a?"]


def test_options_of_the_template_are_sent_where_the_environment_has_some():
    _, (body,), _ = solved([(200, completion(Reply("4")))], options=ChatOptions(enable_thinking=False))
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_further_agents_are_servers():
    asked = []

    def post(request):
        asked.append(request.body())
        request.answer(200, completion(Reply("I am the customer")))

    with listening(post) as url:
        agents = company(None, {"user": {"url": url, "model": "other", "temperature": 0.5}}, "seed")
        reply = asyncio.run(agents.user.reply(ASKED))
    assert reply.text == "I am the customer"
    assert json.dumps(asked[0]["messages"]) == '[{"role": "user", "content": "a?"}]' and asked[0]["temperature"] == 0.5

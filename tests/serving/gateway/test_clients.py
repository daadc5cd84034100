"""Unmodified clients, several turns with tools: trained ids are the engine's ids, and nothing drifts."""

from __future__ import annotations

import json

import anthropic
import numpy as np
import openai
import pytest

from arcforge_core.contracts.sessions import SessionRecord
from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.app import gateway_app
from serving.gateway.conftest import script
from support.servers import listening, scripted_state
from support.sessions import TOKENIZER

TURNS = 3
pytestmark = pytest.mark.slow(reason="real clients, a call and an answer in each of three turns")
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
PRESERVED = {"chat_template_kwargs": {"clear_thinking": False}}


def thinks(text: str) -> str:
    return "r\n</think>" + script(text)


@pytest.fixture(scope="module")
def served():
    """(state, address, prompts and outputs of the engine) of a gateway on a port."""
    state = scripted_state(TOKENIZER, thinks)
    submit, asked = state.engine.submit, []

    def noted(prompt, params, **options):
        streams = submit(prompt, params, **options)
        asked.append(([*prompt], streams[0]))
        return streams

    state.engine.submit = noted
    with listening(state, app=gateway_app(state, GatewayConfig(sessions=10))) as (_, address):
        yield address, asked


@pytest.fixture(params=["path", "key"])
def session(request, served):
    """(base URL, key, function that closes the session and checks it) by each way of reaching it."""
    import httpx

    address, asked = served
    asked.clear()
    opened = httpx.post(f"{address}/sessions", json={}).json()
    by_path = request.param == "path"

    def check(dialect: str) -> SessionRecord:
        found = SessionRecord.from_json(httpx.delete(f"{address}/sessions/{opened['id']}").json())
        assert [turn.drift for turn in found.turns] == ["new"] + ["clean"] * (len(asked) - 1)
        assert {turn.dialect for turn in found.turns} == {dialect} and found.masked_tokens == 0
        (branch,) = found.branches
        outputs = [stream.result() for _, stream in asked]
        assert branch.ids[branch.sampled].tolist() == [id_ for output in outputs for id_ in output.token_ids]
        assert np.allclose(branch.logprobs[branch.sampled], [lp for output in outputs for lp in output.logprobs])
        for (prompt, _), output in zip(asked, outputs, strict=True):
            assert branch.ids[: len(prompt) + len(output.token_ids)].tolist() == [*prompt, *output.token_ids]
        assert len(asked) == 2 * TURNS  # a call and an answer each
        return found

    yield (opened["url"] if by_path else address), ("any" if by_path else opened["secret"]), check


@pytest.mark.parametrize("stream", [False, True])
def test_openai_chat(session, stream):
    url, key, check = session
    tools = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
    messages = [{"role": "system", "content": "s"}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"turn {turn}"})
            while True:
                asked = {"model": "small", "messages": messages, "tools": tools, "extra_body": PRESERVED}
                if stream:
                    with client.chat.completions.stream(**asked) as events:
                        message = events.get_final_completion().choices[0].message
                else:
                    message = client.chat.completions.create(**asked).choices[0].message
                messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                if not message.tool_calls:
                    break
                for call in message.tool_calls:
                    assert json.loads(call.function.arguments) == {"a": "one"}
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "result"})
    assert check("chat").turns[-1].cached_tokens > 0


@pytest.mark.parametrize("stored", [False, True])
def test_openai_responses(session, stored):
    url, key, check = session
    tools = [{"type": "function", "name": "f", "parameters": PARAMETERS, "strict": False}]
    items, previous = [], None
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        for turn in range(TURNS):
            news = [{"role": "user", "content": f"turn {turn}"}]
            while news:
                items += news
                given = {"input": news, "previous_response_id": previous} if stored else {"input": items}
                reply = client.responses.create(model="small", tools=tools, store=stored, extra_body=PRESERVED, **given)
                items += [item.model_dump(exclude_none=True) for item in reply.output]
                previous = reply.id
                news = [
                    {"type": "function_call_output", "call_id": item.call_id, "output": "result"}
                    for item in reply.output
                    if item.type == "function_call"
                ]
    check("responses")


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_messages(session, stream):
    url, key, check = session
    asked = {
        "model": "small",
        "max_tokens": 100,
        "system": "s",
        "tools": [{"name": "f", "input_schema": PARAMETERS}],
        "extra_body": PRESERVED,
    }
    messages = []
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"turn {turn}"})
            while True:
                if stream:
                    with client.messages.stream(messages=messages, **asked) as events:
                        reply = events.get_final_message()
                else:
                    reply = client.messages.create(messages=messages, **asked)
                messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
                calls = [block for block in reply.content if block.type == "tool_use"]
                if not calls:
                    break
                results = [{"type": "tool_result", "tool_use_id": call.id, "content": "result"} for call in calls]
                messages.append({"role": "user", "content": results})
    check("messages")


def test_a_client_that_drops_reasoning_keeps_one_branch(session):
    url, key, check = session
    tools = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
    messages = []
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"turn {turn}"})
            for _ in range(2):
                reply = client.chat.completions.create(
                    model="small", messages=messages, tools=tools, extra_body=PRESERVED
                )
                message = reply.choices[0].message.model_dump(include={"role", "content", "tool_calls"})
                messages.append({name: value for name, value in message.items() if value})
                for call in message["tool_calls"] or ():
                    call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "result"})
    check("chat")

"""Two hundred requests, drawn from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Request = tuple[str, dict[str, Any]]
"""Path and body."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTIONS = [
    {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA},
    {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}},
]
QUESTIONS = ["3+4=", "Use the calculator for 8-5.", "Calculate 12*7.", "What is the weather in Zürich?", "9-9="]


def options(draw: random.Random, length: str = "max_tokens") -> dict[str, Any]:
    """Returns how to sample, for every endpoint; half of the requests are greedy, half are streamed."""
    greedy, streamed = draw.random() < 0.5, draw.random() < 0.5
    drawn = {"temperature": 0} if greedy else {"temperature": draw.choice([0.7, 1.0, 1.3]), "top_p": 0.9}
    return {"model": "tiny", "seed": draw.randrange(1000), length: draw.randrange(4, 24), "stream": streamed, **drawn}


def messages(draw: random.Random) -> list[dict[str, Any]]:
    """Returns one to three turns, the last one the user's."""
    turns = [{"role": "user", "content": draw.choice(QUESTIONS)}]
    for _ in range(draw.randrange(2)):
        turns += [{"role": "assistant", "content": str(draw.randrange(20))}]
        turns += [{"role": "user", "content": draw.choice(QUESTIONS)}]
    return turns


def completion(draw: random.Random) -> Request:
    """A text to continue: with log-probs, several choices, penalties, stop strings."""
    more = draw.choice(
        [
            {"logprobs": 3, "echo": True},
            {"n": 2, "presence_penalty": 0.5},
            {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_p": 0.05},
            {"stop": ["1", "e"], "logprobs": 1},
            {"top_k": 5, "logit_bias": {"40": 5.0}, "return_token_ids": True},
            {"guided_regex": "[a-f]{3,9}"},
        ]
    )
    prompt = draw.choice([draw.choice(QUESTIONS), [draw.randrange(300) for _ in range(draw.randrange(1, 40))]])
    return "/v1/completions", {**options(draw), "prompt": prompt, "ignore_eos": draw.random() < 0.5, **more}


def chat(draw: random.Random) -> Request:
    """A chat that may reason, with log-probs or several choices."""
    more = draw.choice([{}, {"logprobs": True, "top_logprobs": 3}, {"n": 2}, {"return_token_ids": True}])
    thinking = {"thinking": {"type": draw.choice(["enabled", "disabled"])}}
    return "/v1/chat/completions", {**options(draw), "messages": messages(draw), **thinking, **more}


def chat_tools(draw: random.Random) -> Request:
    """A chat with tools: none called yet, or one with its result; the choice is free or not."""
    turns = messages(draw)
    if draw.random() < 0.4:
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "calculator", "arguments": '{"expression": "8-5"}'},
        }
        turns += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        turns += [{"role": "tool", "tool_call_id": "c1", "content": "3"}]
    named = {"type": "function", "function": {"name": "weather"}}
    tools = [{"type": "function", "function": function} for function in FUNCTIONS]
    choice = draw.choice(["auto", "auto", "required", named, "none"])
    more = {"parallel_tool_calls": draw.random() < 0.5, "thinking": {"type": draw.choice(["enabled", "disabled"])}}
    body = {**options(draw), "max_tokens": 48, "messages": turns, "tools": tools, "tool_choice": choice, **more}
    return "/v1/chat/completions", body


def chat_format(draw: random.Random) -> Request:
    """A chat whose answer has a given structure."""
    named = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    form = draw.choice(
        [
            {"response_format": named},
            {"response_format": {"type": "json_object"}},
            {"guided_choice": ["yes", "no", "perhaps"]},
            {"structured_outputs": {"regex": "[0-9]{2,5}"}},
        ]
    )
    body = {**options(draw), "max_tokens": 32, "messages": messages(draw), "thinking": {"type": "disabled"}, **form}
    return "/v1/chat/completions", body


def anthropic(draw: random.Random) -> Request:
    """A message of Anthropic's dialect."""
    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in FUNCTIONS]
    more = draw.choice(
        [
            {},
            {"tools": tools, "max_tokens": 48},
            {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 48},
            {"stop_sequences": ["1", "7"], "system": "Be brief."},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "max_tokens": 48},
        ]
    )
    thinking = {"thinking": {"type": draw.choice(["adaptive", "disabled"])}}
    return "/v1/messages", {**options(draw), "messages": messages(draw), **thinking, **more}


def responses(draw: random.Random) -> Request:
    """A request of OpenAI's newer dialect; some continue from the reply before them."""
    tools = [{"type": "function", **function} for function in FUNCTIONS]
    form = {"type": "json_schema", "name": "place", "schema": SCHEMA}
    more = draw.choice(
        [
            {"instructions": "Be brief."},
            {"previous_response_id": None},
            {"tools": tools, "max_output_tokens": 48},
            {"tools": tools, "tool_choice": "required", "max_output_tokens": 48},
            {"text": {"format": form}, "max_output_tokens": 48},
        ]
    )
    effort = {"reasoning": {"effort": draw.choice(["none", "medium"])}}
    given = draw.choice([draw.choice(QUESTIONS), messages(draw)])
    return "/v1/responses", {**options(draw, "max_output_tokens"), "input": given, **effort, **more}


def requests(make: Callable[[random.Random], Request], count: int) -> list[Request]:
    """Returns requests of one kind."""
    draw = random.Random(make.__name__)  # a string seeds alike in every process
    return [make(draw) for _ in range(count)]


KINDS: dict[str, list[Request]] = {
    "completions": requests(completion, 50),
    "chats": requests(chat, 30),
    "chats with tools": requests(chat_tools, 30),
    "chats with a format": requests(chat_format, 20),
    "messages": requests(anthropic, 35),
    "responses": requests(responses, 35),
}

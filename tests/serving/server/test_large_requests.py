"""Requests that are made to take long: refused by their size, or worked on while others are answered."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import llguidance
import pytest

from arcforge_core.tokenizer.tokenizer import Tokenizer

CODE = "def add(left, right):\n    return left + right\n"
MANY = {f"property_{number}": {"type": "string"} for number in range(5000)}
SCHEMA = {"type": "object", "properties": MANY, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
BLOWN_UP = [
    "(((a{1,50}){1,50}){1,50}){1,50}", "(.|\\n){0,50000}", "(" * 5000 + ")" * 5000, r"(?:.{1,1000}|\d{1,1000}){1,1000}",
    "(a|aa)+b" * 20, "(a|b)*a(a|b){25}",
]  # fmt: skip


class Uncompiled:
    """An `LLMatcher` that must not be made."""

    grammar_from_lark, grammar_from_regex, grammar_from_json_schema = (
        staticmethod(getattr(llguidance.LLMatcher, f"grammar_from_{kind}")) for kind in ("lark", "regex", "json_schema")
    )

    def __init__(self, *args, **options):
        pytest.fail("it was compiled")


def post(client, path, **body):
    return client.post(path, json={"max_tokens": 1, **body})


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/completions", {"prompt": CODE * 80_000}), ("/v1/completions", {"prompt": ["a", CODE * 80_000]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": CODE * 80_000}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": CODE * 400}] * 200}),
    ("/v1/messages", {"model": "small", "messages": [{"role": "user", "content": CODE * 80_000}]}),
    ("/v1/responses", {"input": CODE * 80_000, "max_tokens": None}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [
        {"type": "function", "function": {"name": f"f{number}", "description": CODE * 40}} for number in range(2000)
    ]}),
])  # fmt: skip
def test_prompts_that_cannot_fit_are_refused_before_they_are_encoded(client, monkeypatch, path, body):
    monkeypatch.setattr(Tokenizer, "_encoding", lambda *args: pytest.fail("it was encoded"))
    reply = post(client, path, **body)
    said = "prompt is too long" if path == "/v1/messages" else "at least"  # Anthropic's sentence has no room for it
    assert reply.status_code == 400 and said in reply.json()["error"]["message"]


@pytest.mark.parametrize(("path", "field"), [
    ("/v1/chat/completions", "messages"), ("/v1/messages", "messages"), ("/v1/responses", "input"),
])  # fmt: skip
def test_conversations_of_countless_messages_are_refused(client, path, field):
    body = {"model": "small", field: [{"role": "user", "content": "a"}] * 10_001}
    reply = client.post(path, json=body | ({} if field == "input" else {"max_tokens": 1}))
    assert reply.status_code == 400
    said = reply.json()["error"]["message"]
    assert said.startswith(f"{field}: ") and "at most 10000 items" in said


HUGE = CODE * 30_000
WRITTEN = [
    {"role": "assistant", "content": HUGE}, {"role": "assistant", "content": "a", "reasoning_content": HUGE},
    {"role": "assistant", "content": [{"type": "text", "text": HUGE}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": json.dumps({"a": HUGE})}}]},
]  # fmt: skip


@pytest.mark.parametrize(("path", "field", "body"), [
    *(("/v1/chat/completions", "messages", {"messages": [message, {"role": "user", "content": "a"}]})
      for message in WRITTEN),
    ("/v1/chat/completions", "tools", {"messages": [{"role": "user", "content": "a"}], "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"enum": [HUGE]}}}]}),
    ("/v1/messages", "messages", {"model": "small", "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": HUGE}, {"role": "user", "content": "a"}]}),
    ("/v1/messages", "messages", {"model": "small", "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": HUGE}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "a"}]}]}),
    ("/v1/responses", "messages", {"max_tokens": None, "input": [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"a": HUGE})},
        {"type": "function_call_output", "call_id": "c", "output": "a"}]}),
])  # fmt: skip
def test_what_models_wrote_is_bounded_before_it_is_encoded(client, monkeypatch, path, field, body):
    monkeypatch.setattr(Tokenizer, "_encoding", lambda *args: pytest.fail("it was encoded"))
    reply = post(client, path, **body)
    assert reply.status_code == 400, reply.text
    assert "must have at most 1,048,576 characters, not 1," in reply.json()["error"]["message"]
    assert reply.json()["error"].get("param", field) == field


def test_texts_to_tokenize_are_bounded(client):
    reply = client.post("/tokenize", json={"prompt": "a" * (2**20 + 1)})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "prompt: must have at most 1,048,576 characters, not 1,048,577"


def test_prompts_that_fit_are_not_refused_by_their_length(client):
    space = " " * 5000  # one token is many of them
    assert post(client, "/v1/completions", prompt="a").status_code == 200
    assert client.post("/tokenize", json={"prompt": CODE * 2000}).json()["count"] > 1024
    messages = [{"role": "user", "content": space + "Hi" + space}]
    assert post(client, "/v1/chat/completions", messages=messages).status_code in (200, 400)


@pytest.mark.parametrize(("path", "field", "body"), [
    ("/v1/completions", "guided_choice", {"guided_choice": [f"choice {number}" for number in range(100_000)]}),
    ("/v1/completions", "structured_outputs", {"structured_outputs": {"choice": [str(n) for n in range(100_000)]}}),
    ("/v1/completions", "guided_json", {"guided_json": SCHEMA}),
    ("/v1/completions", "guided_json", {"guided_json": {"enum": list(range(50_000))}}),
    ("/v1/completions", "guided_regex", {"guided_regex": "a" * 1_000_000}),
    ("/v1/completions", "guided_regex", {"guided_regex": "|".join(map(str, range(30_000)))}),
    ("/v1/completions", "guided_grammar", {"guided_grammar": "start: " + " | ".join(f'"{n}"' for n in range(30_000))}),
    ("/v1/chat/completions", "response_format",
     {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    ("/v1/chat/completions", "tools", {"tools": [TOOL], "tool_choice": "required"}),
])  # fmt: skip
def test_large_grammars_are_refused_before_they_are_compiled(client, monkeypatch, path, field, body):
    monkeypatch.setattr(llguidance, "LLMatcher", Uncompiled)
    prompt = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    reply = post(client, path, **prompt, **body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == field
    assert "must have at most 200,000 characters and 10,000" in error["message"]


@pytest.mark.parametrize("pattern", BLOWN_UP)
def test_expressions_that_blow_up_end(client, pattern):
    assert post(client, "/v1/completions", prompt="a", guided_regex=pattern).status_code in (200, 400)


def test_others_are_answered_meanwhile(live, monkeypatch):
    """Several answers of ``/health`` come while one request is worked on; when it held the interpreter, none did."""
    state, client = live
    monkeypatch.setattr(state.tokenizer, "widest", None)
    base, answered = str(client.base_url).removesuffix("/v1/"), 0
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=base, timeout=60) as http:
        assert http.get("/health").status_code == 200  # it has connected
        body = {"prompt": CODE * 40_000, "max_tokens": 1}
        asked = pool.submit(httpx.post, f"{base}/v1/completions", json=body, timeout=60)
        while not asked.done():
            answered += http.get("/health").status_code == 200
    assert asked.result().status_code in (200, 400)
    assert answered > 3

"""Tools together with structured output, and guarantees that a format cannot give."""

import json

import pytest

from arcforge_core.chat.load import build_chat_template
from arcforge_core.configs import JinjaTemplateConfig
from arcforge_core.contracts.chat import Message
from arcforge_core.testing.chat_cases import with_tokens
from arcforge_core.testing.small_models import small_model
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.server.openai.chat_grammar import not_guaranteed, turn_matcher
from arcforge_serving.server.openai.chat_request import ChatRequest
from support.servers import client_of, small_state

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": POINT, "strict": True}}


def tool(name, parameters=None, **fields):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}, **fields}}


TOOLS = [tool("ping", {"type": "object", "properties": {}}), tool("pong", POINT)]
TEMPLATES = {"glm": None, "hermes": "chatml", "llama": "llama3"}
CALLS = {
    "glm": "<tool_call>ping</tool_call>",
    "hermes": '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    "llama": '{"name": "ping", "parameters": {}}',
}


@pytest.fixture(scope="module", params=TEMPLATES)
def served(request, tokenizer):
    """(kind, state) with the template of a kind."""
    tokens = [
        "<|im_start|>",
        "<|im_end|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    tokenizer = with_tokens(tokenizer, [*tokens, "<|eom_id|>", "<|python_tag|>"])
    state = small_state(tokenizer, small_model(vocab_size=tokenizer.vocab_size))
    if TEMPLATES[request.param]:
        state.template = build_chat_template(tokenizer, JinjaTemplateConfig(template=TEMPLATES[request.param]))
    return request.param, state


def follows(state, text, **fields):
    """Whether a turn may be this text, then its end."""
    body = ChatRequest(messages=[{"role": "user", "content": "a"}], **fields)
    tools = body.callable_tools()
    prompt = state.template.render([Message("user", "a")], tools, generation_prompt=True).ids
    prompt = [*prompt, *state.tokenizer.encode("</think>", allow_special=True)]  # after the reasoning
    matcher = turn_matcher(body, state, state.template, prompt, tools)()
    for id_ in state.tokenizer.encode(text, allow_special=True):
        if matcher.finished or not matcher.allowed()[id_]:
            return False
        matcher.accept(id_)
    return matcher.finished or bool(matcher.allowed()[state.template.stop_ids[0]])


@pytest.mark.parametrize(
    "wanted", [{"response_format": FORMAT}, {"guided_json": POINT}, {"guided_choice": ['{"x": 1}']}]
)
def test_a_turn_is_calls_or_the_structure(served, wanted):
    kind, state = served
    fields = {"tools": TOOLS, **wanted}
    assert follows(state, CALLS[kind], **fields)
    assert follows(state, '{"x": 1}', **fields)
    assert not follows(state, "free text", **fields)
    assert not follows(state, CALLS[kind].replace("ping", "other"), **fields)
    assert not follows(state, '{"x": 1}', **fields, tool_choice="required")
    assert follows(state, CALLS[kind], **fields, tool_choice="required")
    assert not follows(state, CALLS[kind], **fields, tool_choice="none")
    assert follows(state, '{"x": 1}', **fields, tool_choice="none")


def test_calls_are_limited_to_the_allowed_tools(served):
    kind, state = served
    names = [{"type": "function", "function": {"name": "pong"}}]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}
        fields = {"tools": TOOLS, "tool_choice": choice}
        if mode == "auto" and kind == "llama":
            continue
        assert not follows(state, CALLS[kind], **fields)
        assert follows(state, "free text", **fields) == (mode == "auto")


def test_what_cannot_be_guaranteed_is_served_and_named(tokenizer):
    state = small_state(tokenizer)
    unsupported = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 1}}}}
    for schema, names in ((POINT, []), (unsupported, ["tools.function.strict"])):
        body = ChatRequest(messages=[{"role": "user", "content": "a"}], tools=[tool("f", schema, strict=True)])
        tools = body.callable_tools()
        prompt = state.template.render([Message("user", "a")], tools, generation_prompt=True).ids
        assert not_guaranteed(body, state, state.template, prompt, tools) == names
    unmarked = Tokenizer(tokenizer.definition.replace("<tool_call>", "<call>"))
    unmarked = with_tokens(unmarked, ["<|im_start|>", "<|im_end|>"])
    model = small_model(vocab_size=unmarked.vocab_size, max_position_embeddings=1024)
    state = small_state(unmarked, model)
    state.template = build_chat_template(unmarked, JinjaTemplateConfig(template="chatml"))
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "parallel_tool_calls": False,
            "tools": [tool("f", POINT, strict=True)]}  # fmt: skip
    with client_of(state) as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == "parallel_tool_calls, tools.function.strict"


def test_white_space_of_json_ends(tokenizer):
    state = small_state(tokenizer)
    for text in ('{"x":1}', '{ "x": 1 }', json.dumps({"x": 1}, indent=8), '{\r\n\t"x": 1\r\n}'):
        assert follows(state, text, response_format=FORMAT)
    for text in ("{" + " " * 60 + '"x": 1}', "{" + "\n" * 9 + '"x": 1}'):
        assert not follows(state, text, response_format=FORMAT)
        assert not follows(state, text, guided_json=POINT)

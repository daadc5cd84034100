"""Calls as JSON: between tags, and as the whole answer."""

import pytest

from arcforge_core.chat.json_parsers import HermesParser, LlamaParser
from arcforge_core.configs import HermesParserConfig, LlamaParserConfig
from arcforge_core.contracts.chat import Tool
from arcforge_core.testing.chat_cases import joined, pieces_of, read_text

TOOLS = [Tool({"name": "f"})]
NOT_JSON = "a tool call is not JSON with a name and arguments"
NOT_ALL = "the beginning of a tool call is not JSON with a name and parameters"
HERMES = {
    "a call": ('hi\n<tool_call>\n{"name": "f", "arguments": {"x": [1, "é"]}}\n</tool_call>', "hi",
               [("f", {"x": [1, "é"]})], []),
    "two calls": ('<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>', "",
                  [("f", {}), ("f", {})], []),
    "arguments as a string": ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "",
                              [("f", {"x": 1})], []),
    "a tag inside a string": ('<tool_call>{"name": "f", "arguments": {"x": "</tool_call><think>"}}</tool_call>', "",
                              [("f", {"x": "</tool_call><think>"})], []),
    "a line end inside a string": ('<tool_call>{"name": "f", "arguments": {"x": "a\nb"}}</tool_call>', "",
                                   [("f", {"x": "a\nb"})], []),
    "closed by the end only": ('<tool_call>{"name": "f"}', "", [("f", {})], []),
    "cut off": ('a<tool_call>{"name": "f", "arg', 'a<tool_call>{"name": "f", "arg', [], [NOT_JSON]),
    "no JSON": ("<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", [], [NOT_JSON]),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', [], [NOT_JSON]),
    "arguments that are none": ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
                                '<tool_call>{"name": "f", "arguments": "x"}</tool_call>', [], [NOT_JSON]),
    "NaN": ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', [], [NOT_JSON]),
    "two objects in one call": ('<tool_call>{"name": "f"}{"name": "f"}</tool_call>',
                                '<tool_call>{"name": "f"}{"name": "f"}</tool_call>', [], [NOT_JSON]),
    "unknown tool": ('<tool_call>{"name": "g"}</tool_call>', "", [("g", {})], ["there is no tool 'g'"]),
    "a stray end": ("a</tool_call>b", "a</tool_call>b", [], []),
}  # fmt: skip
LLAMA = {
    "a call": ('{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})], []),
    "OpenAI's word": ('{"name": "f", "arguments": {"x": 1}}', "", [("f", {"x": 1})], []),
    "announced": ('<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", {})], []),
    "several": ('\n {"name": "f"}; {"name": "f", "parameters": {"x": "<think>"}}\n', "",
                [("f", {}), ("f", {"x": "<think>"})], []),
    "text": ("Hello {x}", "Hello {x}", [], []),
    "nothing": (" ", "", [], []),
    "other JSON": ('{"a": 1}', '{"a": 1}', [], [NOT_ALL]),
    "text after a call": ('{"name": "f"} and', '{"name": "f"} and', [], [NOT_ALL]),
    "cut off": ('{"name": "f", ', '{"name": "f",', [], [NOT_ALL]),
    "a tag in the text": ("a<|python_tag|>b", "a<|python_tag|>b", [], []),
}  # fmt: skip


def read(parser, text, cuts):
    _, content, calls = joined(read_text(parser, pieces_of(text, cuts)))
    return content, calls, list(parser.parsed.flaws)


@pytest.mark.parametrize("name", HERMES)
def test_hermes_at_every_cut(name):
    text, *expected = HERMES[name]
    for cuts in [(), range(len(text)), *((cut,) for cut in range(len(text)))]:
        assert list(read(HermesParser(HermesParserConfig(), TOOLS), text, cuts)) == expected, cuts


@pytest.mark.parametrize("name", LLAMA)
def test_llama_at_every_cut(name):
    text, *expected = LLAMA[name]
    for cuts in [(), range(len(text)), *((cut,) for cut in range(len(text)))]:
        assert list(read(LlamaParser(LlamaParserConfig(), TOOLS), text, cuts)) == expected, cuts


def test_without_tools_json_is_an_answer():
    text = '{"name": "f", "parameters": {}}'
    assert read(LlamaParser(LlamaParserConfig()), text, ()) == (text, [], [])


def test_json_that_is_too_deep_is_content():
    text = '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 100_000 + "</tool_call>"
    content, calls, flaws = read(HermesParser(HermesParserConfig()), text, ())
    assert (content, calls, flaws) == (text, [], [NOT_JSON])


def test_reasoning_before_a_call():
    parser = HermesParser(HermesParserConfig(), TOOLS)
    read_text(parser, ['<think>r</think>\n\nc<tool_call>{"name": "f"}</tool_call>'])
    message = parser.parsed.message
    assert (message.reasoning, message.content, len(message.tool_calls)) == ("r", "c", 1)

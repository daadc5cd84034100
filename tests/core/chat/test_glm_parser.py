"""Outputs that engines have got wrong, and what is meant by them."""

import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.chat.glm_parser import NOT_CLOSED, GlmParser
from arcforge_core.configs import GlmParserConfig
from arcforge_core.contracts.chat import Tool, ToolCall
from arcforge_core.errors import ConfigError
from arcforge_core.testing.chat_cases import HARD, joined, pieces_of, read_ids, read_text
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.tokenizer.tokenizer import SPECIAL_TOKENS

TOKENIZER = small_tokenizer()
TOOLS = [
    Tool(
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "s": {"type": "string"},
                        "n": {"type": "integer"},
                        "o": {"type": ["string", "null"]},
                        "u": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                        "d": {"type": "object"},
                        "b": {"type": "boolean"},
                    },
                },
            },
        }
    ),
    Tool({"name": "now"}),
]


def call(name, **arguments):
    return (name, arguments)


# name: (completion, thinking, reasoning, content, calls, flaws)
OUTPUTS = {
    "plain": ("Hi there", False, "", "Hi there", [], []),
    "reasoning": ("because</think>\n\nSo.", True, "because", "So.", [], []),
    "opening tag again": ("<think>because</think>So.", True, "because", "So.", [], []),
    "opening tag by the model": ("\n<think>r</think>c", None, "r", "c", [], []),
    "no reasoning where it may be": ("c <think>x", None, "", "c <think>x", [], []),
    "thinking off: all is content": ("<think>a</think>b", False, "", "<think>a</think>b", [], []),
    "unclosed reasoning": ("hm, ", True, "hm,", "", [], ["the reasoning was not closed"]),
    "empty": ("", False, "", "", [], []),
    "white space": (" \n r \n </think> \n c d \n", True, "r", "c d", [], []),
    "thinking ended by a call": (
        "r<tool_call>now</tool_call>", True, "r", "", [call("now")], ["a tool call ended the reasoning"],
    ),
    "no arguments": ("<tool_call>now</tool_call>", False, "", "", [call("now")], []),
    "no arguments, line ends": ("<tool_call>\nnow\n</tool_call>\n", False, "", "", [call("now")], []),
    "content and two calls": (
        "Both:\n<tool_call>now</tool_call>\n<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>\n",
        False, "", "Both:", [call("now"), call("f", n=1)], [],
    ),
    "string that looks like a number": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>5</arg_value><arg_key>n</arg_key><arg_value>5</arg_value></tool_call>",
        False, "", "", [call("f", s="5", n=5)], [],
    ),
    "GLM-4.5's line ends": (
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>",
        False, "", "", [call("f", s="x", n=2)], [],
    ),
    "an escaped line end between key and value": (
        "<tool_call>f<arg_key>s</arg_key>\\n<arg_value>x</arg_value></tool_call>",
        False, "", "", [call("f", s="x")], [],
    ),
    "optional string": ("<tool_call>f<arg_key>o</arg_key><arg_value>null</arg_value></tool_call>",
                        False, "", "", [call("f", o=None)], []),
    "optional string that is a number": ("<tool_call>f<arg_key>o</arg_key><arg_value>12</arg_value></tool_call>",
                                         False, "", "", [call("f", o="12")], []),
    "string or number": ("<tool_call>f<arg_key>u</arg_key><arg_value>12</arg_value></tool_call>",
                         False, "", "", [call("f", u=12)], []),
    "Python's words": (
        "<tool_call>f<arg_key>b</arg_key><arg_value>True</arg_value><arg_key>d</arg_key><arg_value>{'a': (1, None)}"
        "</arg_value></tool_call>",
        False, "", "", [call("f", b=True, d={"a": [1, None]})], [],
    ),
    "invalid JSON": ("<tool_call>f<arg_key>d</arg_key><arg_value>{oops</arg_value></tool_call>",
                     False, "", "", [call("f", d="{oops")], []),
    "unknown parameter": ("<tool_call>f<arg_key>x</arg_key><arg_value>[1, 2]</arg_value></tool_call>",
                          False, "", "", [call("f", x=[1, 2])], []),
    "unknown tool": ("<tool_call>g<arg_key>x</arg_key><arg_value>y</arg_value></tool_call>",
                     False, "", "", [call("g", x="y")], ["there is no tool 'g'"]),
    "closing tag inside a value": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>b</arg_value></tool_call>",
        False, "", "", [call("f", s="a</arg_value>b")], [],
    ),
    "all tags inside a value": (
        "<tool_call>f<arg_key>s</arg_key><arg_value><tool_call>g<arg_key>k</arg_key><arg_value>v</tool_call></think>"
        "</arg_value></tool_call>",
        False, "", "", [call("f", s="<tool_call>g<arg_key>k</arg_key><arg_value>v</tool_call></think>")], [],
    ),
    "text after a value is dropped": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value> junk <arg_key>n</arg_key><arg_value>1</arg_value>"
        "</tool_call>",
        False, "", "", [call("f", s="a", n=1)], ["text follows the value of 's'"],
    ),
    "a value without its opening tag": (
        "<tool_call>f<arg_key>s</arg_key>\n a b</arg_value><arg_key>n</arg_key>7</arg_value></tool_call>",
        False, "", "", [call("f", s="a b", n=7)],
        ["the value of 's' has no opening tag", "the value of 'n' has no opening tag"],
    ),
    "a backslash is a value without its opening tag": (
        "<tool_call>f<arg_key>s</arg_key>\\</arg_value></tool_call>",
        False, "", "", [call("f", s="\\")], ["the value of 's' has no opening tag"],
    ),
    "no value at all, closed": (
        "<tool_call>f<arg_key>s</arg_key></arg_value></tool_call>",
        False, "", "", [call("f", s="")], ["the value of 's' has no opening tag"],
    ),
    "a key without a value": (
        "<tool_call>f<arg_key>s</arg_key><arg_key>n</arg_key><arg_value>1</arg_value></tool_call>",
        False, "", "", [call("f", n=1)], ["an argument has no value"],
    ),
    "a key that is not closed": (
        "<tool_call>f<arg_key>s</tool_call>x", False, "", "x", [call("f")], ["an argument has no value"],
    ),
    "unterminated value": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</tool_call>",
        False, "", "", [call("f", s="a</tool_call>")], [NOT_CLOSED],
    ),
    "unterminated number": (
        "<tool_call>f<arg_key>n</arg_key><arg_value>4", False, "", "", [call("f", n=4)], [NOT_CLOSED],
    ),
    "cut off after a value": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>\n", False, "", "", [call("f", s="a")], [NOT_CLOSED],
    ),
    "cut off in a key": ("<tool_call>f<arg_key>s", False, "", "", [call("f")], [NOT_CLOSED]),
    "cut off after a key": ("<tool_call>f<arg_key>s</arg_key> ", False, "", "", [call("f")], [NOT_CLOSED]),
    "cut off in the name": ("c<tool_call>no", False, "", "c<tool_call>no", [], [NOT_CLOSED]),
    "a call that is not closed before the next": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>\n<tool_call>now</tool_call>",
        False, "", "", [call("f", s="a"), call("now")], [NOT_CLOSED],
    ),
    "a name that is not closed before the next": (
        "<tool_call>now<tool_call>now</tool_call>", False, "", "<tool_call>now", [call("now")], [NOT_CLOSED],
    ),
    "a call without a name": (
        "<tool_call> </tool_call>x", False, "", "<tool_call> </tool_call>x", [], ["a tool call has no name"],
    ),
    "arguments without a name": (
        "<tool_call><arg_key>s</arg_key>",
        False, "", "<tool_call><arg_key>s</arg_key>", [], ["a tool call has no name"],
    ),
    "stray tags in content": ("a</tool_call>b</arg_value>c</think>", False, "",
                              "a</tool_call>b</arg_value>c</think>", [], []),
    "stray tags in reasoning": ("a</arg_value>b</think>c", True, "a</arg_value>b", "c", [], []),
    "the same key twice: the last": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value><arg_key>s</arg_key><arg_value>b</arg_value></tool_call>",
        False, "", "", [call("f", s="b")], [],
    ),
    "text after a call": ("a<tool_call>now</tool_call>b", False, "", "ab", [call("now")], []),
    "the end of a turn": ("a<|observation|>b<tool_call>now</tool_call>", False, "", "a", [], []),
    "the end of text inside a value": (
        "<tool_call>f<arg_key>s</arg_key><arg_value>a<|endoftext|>b</arg_value></tool_call>",
        False, "", "", [call("f", s="a")], [NOT_CLOSED],
    ),
    "characters of several tokens": ("漢字🙂</think>é\u0301", True, "漢字🙂", "é\u0301", [], []),
    "what only begins like a tag": ("a <arg <tool_cal </thin", False, "", "a <arg <tool_cal </thin", [], []),
}  # fmt: skip
ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")


def parser(thinking=False, tools=TOOLS, tokenizer=TOKENIZER):
    return GlmParser(GlmParserConfig(), tools, tokenizer=tokenizer, thinking=thinking, ends=ENDS)


def by_text(text, cuts, thinking):
    reader = parser(thinking)
    return joined(read_text(reader, pieces_of(text, cuts))), reader.parsed


def by_ids(ids, cuts, thinking):
    reader = parser(thinking)
    return joined(read_ids(reader, pieces_of(ids, cuts))), reader.parsed


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_cutting_of_hard_outputs(name):
    text, thinking, *expected, flaws = OUTPUTS[name]
    ids = TOKENIZER.encode(text, allow_special=True)
    readings = [(by_text, text), (by_ids, ids)]
    for read, whole in readings:
        cuttings = [(), range(len(whole)), *combinations(range(1, len(whole)), 1)]
        if len(whole) < 40:
            cuttings += combinations(range(1, len(whole)), 2)
        for cuts in cuttings:
            deltas, parsed = read(whole, cuts, thinking)
            assert list(deltas) == expected, cuts
            message = parsed.message
            assert [message.reasoning, message.content] == expected[:2]
            assert message.tool_calls == tuple(ToolCall(*made) for made in expected[2])
            assert list(parsed.flaws) == flaws


@given(st.lists(st.sampled_from((*HARD, "f", "s", "now")), max_size=12).map("".join), st.data())
def test_any_output_in_any_pieces(text, data):
    thinking = data.draw(st.sampled_from([True, False, None]))
    cuts = data.draw(st.sets(st.integers(0, len(text)), max_size=5))
    assert by_text(text, cuts, thinking) == by_text(text, (), thinking)
    ids = TOKENIZER.encode(text, allow_special=data.draw(st.booleans()))
    assert by_ids(ids, cuts, thinking) == by_ids(ids, (), thinking)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=20))
def test_any_ids_in_any_pieces(ids):
    """Bytes that are no characters, too."""
    for thinking in (True, False, None):
        assert by_ids(ids, range(len(ids)), thinking) == by_ids(ids, (), thinking)


def test_text_that_spells_a_tag_is_text_among_ids():
    text = "</think>" + "".join(SPECIAL_TOKENS)
    reader = parser(thinking=True)
    reader.feed([*TOKENIZER.encode(text), TOKENIZER.special["</think>"], *TOKENIZER.encode(text)])
    reader.finish()
    assert (reader.parsed.message.reasoning, reader.parsed.message.content) == (text, text)


def test_strings_arrive_while_they_are_written_and_numbers_when_they_are_complete():
    reader = parser()
    pieces = ["<tool_call>f<arg_key>s</arg_key><arg_value>a", 'b"', "</arg_value>", "<arg_key>n</arg_key><arg_value>1",
              "2", "</arg_value>", "</tool_call>"]  # fmt: skip
    assert ["".join(delta.arguments for delta in reader.feed_text(piece)) for piece in pieces] == [
        '{"s": "a', 'b\\"', "", '", "n": ', "", "", "12}",
    ]  # fmt: skip


def test_content_arrives_while_it_is_written():
    reader = parser()
    assert [joined(reader.feed_text(piece))[1] for piece in ("a ", "b", " <", "x")] == ["a", " b", "", " <x"]


def test_ids_need_a_tokenizer():
    with pytest.raises(ConfigError, match="tokenizer"):
        parser(tokenizer=None).feed([1])


def test_finish_is_said_once():
    reader = parser(thinking=True)
    reader.feed_text("r")
    reader.finish()
    assert reader.finish() == [] and reader.parsed.flaws == ("the reasoning was not closed",)
    assert reader.feed_text("more") == []


def test_a_call_in_the_making_has_no_arguments_yet():
    reader = parser()
    reader.feed_text("<tool_call>f<arg_key>s</arg_key><arg_value>a")
    assert reader.parsed.message.tool_calls == (ToolCall("f", {}),)


@pytest.mark.parametrize("value", ["[" * 100_000, "-" * 100_000 + "1", "9" * 5000, '{"a": "\\ud800"}', "NaN", "1e999"])
def test_values_that_are_no_usable_json_stay_text(value):
    text = f"<tool_call>f<arg_key>d</arg_key><arg_value>{value}</arg_value></tool_call>"
    reader = parser()
    deltas = read_text(reader, [text])
    [(_, arguments)] = joined(deltas)[2]
    assert arguments == {"d": value}
    assert json.loads("".join(d.arguments for d in deltas)) == arguments


@pytest.mark.parametrize("gap", ["\\n", "\n", " \\n\n"])
def test_an_escaped_newline_after_the_name_is_no_part_of_it(gap):
    for text in (
        f"<tool_call>f{gap}<arg_key>n</arg_key><arg_value>1</arg_value>{gap}</tool_call>",
        f"<tool_call>f{gap}<arg_key>n</arg_key>{gap}<arg_value>1</arg_value></tool_call>",
    ):
        parser = GlmParser(GlmParserConfig(), TOOLS, tokenizer=TOKENIZER, thinking=False)
        parser.feed_text(text)
        parser.finish()
        (call,) = parser.parsed.message.tool_calls
        assert (call.name, call.arguments) == ("f", {"n": 1})
        assert parser.parsed.flaws == ()

"""Grammars of calls: what they let through is what the parsers read, and nothing else."""

import json

import pytest

from arcforge_core.chat.glm_parser import GlmParser
from arcforge_core.chat.json_parsers import HermesParser, LlamaParser
from arcforge_core.chat.parser import Parser
from arcforge_core.configs import GlmParserConfig, HermesParserConfig, LlamaParserConfig
from arcforge_core.contracts.chat import Tool
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.engine.grammar import Grammars
from arcforge_serving.server.openai.tool_grammar import rest_of_call, whole_calls

TOKENIZER = small_tokenizer()
PARSERS = {"glm": (GlmParser, GlmParserConfig), "hermes": (HermesParser, HermesParserConfig),
           "llama": (LlamaParser, LlamaParserConfig)}  # fmt: skip


def tool(name, parameters=None, **fields):
    return Tool({"type": "function", "function": {"name": name, "parameters": parameters, **fields}})


FULL = tool(
    "set",
    {
        "type": "object",
        "properties": {
            "unit": {"enum": ["a", "b\n"]},
            "text": {"type": "string"},
            "short": {"type": "string", "minLength": 2, "maxLength": 3},
            "kind": {"$ref": "#/$defs/kind"},
            "count": {"$ref": "#/$defs/count"},
            "any": {},
        },
        "required": ["unit"],
        "$defs": {"kind": {"const": "k"}, "count": {"type": "integer", "minimum": 0}},
    },
)
NONE, ANY = tool("none", {"type": "object", "properties": {}}), tool("any")


def parser_of(kind, tools=()):
    target, config = PARSERS[kind]
    return target(config(), tools, tokenizer=TOKENIZER, thinking=False)


def follows(grammar, text, tokenizer=TOKENIZER):
    """Whether a grammar lets a text through as a whole; tags are their tokens."""
    matcher = Grammars(tokenizer, tokenizer.vocab_size).lark(grammar)()
    for id_ in tokenizer.encode(text, allow_special=True):
        if matcher.finished or not matcher.allowed()[id_]:
            return False
        matcher.accept(id_)
    return matcher.finished or bool(matcher.allowed()[tokenizer.eos_id])


def glm(name, **arguments):
    pairs = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in arguments.items())
    return f"<tool_call>{name}{pairs}</tool_call>"


def hermes(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def llama(name, arguments):
    return json.dumps({"name": name, "parameters": arguments})


GOOD = [{"unit": "a"}, {"unit": "b\n", "text": "x<y>\n", "short": "ab", "kind": "k", "count": 3, "any": "z"}]
BAD = [{}, {"unit": "c"}, {"unit": "a", "short": "a"}, {"unit": "a", "kind": "l"}, {"unit": "a", "count": -1},
       {"unit": "a", "count": "x"}]  # fmt: skip


@pytest.mark.parametrize("kind", PARSERS)
def test_arguments_follow_their_schema(kind):
    write = {"glm": lambda n, a: glm(n, **a), "hermes": hermes, "llama": llama}[kind]
    grammar = whole_calls(parser_of(kind), TOKENIZER, [FULL, NONE], many=False)
    for arguments in GOOD:
        text = write("set", arguments)
        assert follows(grammar, text), text
        parser = parser_of(kind, [FULL])
        parser.feed(TOKENIZER.encode(text, allow_special=True))
        parser.finish()
        (call,) = parser.parsed.message.tool_calls
        assert (call.name, dict(call.arguments)) == ("set", arguments)
    assert follows(grammar, write("none", {}))
    for arguments in BAD:
        assert not follows(grammar, write("set", arguments)), arguments
    assert not follows(grammar, write("other", {}))
    assert not follows(grammar, "text " + write("none", {}))


def test_glm_arguments_are_those_of_the_schema():
    grammar = whole_calls(parser_of("glm"), TOKENIZER, [FULL, NONE, ANY], many=False)
    assert not follows(grammar, glm("set", unit="a", other="b"))
    assert not follows(grammar, glm("set", text="b", unit="a"))  # in the schema's order
    assert not follows(grammar, glm("none", a="b"))
    assert follows(grammar, glm("any", a="b", c="5"))
    required = tool("f", {"type": "object", "properties": {}, "required": ["x"]})
    grammar = whole_calls(parser_of("glm"), TOKENIZER, [required], many=False)
    assert follows(grammar, glm("f", x="1"))
    assert not follows(grammar, glm("f"))


@pytest.mark.parametrize(
    ("kind", "one", "between"),
    [("glm", glm("none"), ""), ("hermes", hermes("none", {}), "\n"), ("llama", llama("none", {}), ";")],
)
def test_one_call_or_many(kind, one, between):
    many = whole_calls(parser_of(kind), TOKENIZER, [NONE], many=True)
    single = whole_calls(parser_of(kind), TOKENIZER, [NONE], many=False)
    for count in (1, 2, 3):
        assert follows(many, between.join([one] * count))
        assert follows(single, between.join([one] * count)) == (count == 1)
    assert not follows(many, "")


def test_tags_that_are_no_tokens_are_spelt():
    definition = json.loads(TOKENIZER.definition)
    definition["added_tokens"] = [t for t in definition["added_tokens"] if "tool_call" not in t["content"]]
    plain = Tokenizer(json.dumps(definition))
    grammar = whole_calls(parser_of("hermes"), plain, [NONE], many=False)
    assert follows(grammar, hermes("none", {}), plain)
    with pytest.raises(ConfigError, match="a token of their own"):
        rest_of_call(parser_of("hermes"), plain, [NONE])


def test_only_strict_tools_have_to_have_their_arguments_behind_a_token():
    strict = tool("set", FULL.parameters, strict=True)
    loose = rest_of_call(parser_of("glm"), TOKENIZER, [FULL])
    firm = rest_of_call(parser_of("glm"), TOKENIZER, [strict])
    for arguments, fits in (({"unit": "a"}, True), ({"other": "b"}, False)):
        text = glm("set", **arguments).removeprefix("<tool_call>")
        assert follows(loose, text)
        assert follows(firm, text) == fits
        text = hermes("set", arguments).removeprefix("<tool_call>")
        assert follows(rest_of_call(parser_of("hermes"), TOKENIZER, [FULL]), text)
        assert follows(rest_of_call(parser_of("hermes"), TOKENIZER, [strict]), text) == fits


def test_formats_without_a_grammar_are_refused():
    with pytest.raises(ConfigError, match="no grammar of Parser's format"):
        whole_calls(Parser(), TOKENIZER, [NONE], many=False)
    with pytest.raises(ConfigError, match="strict"):
        rest_of_call(parser_of("llama"), TOKENIZER, [NONE])

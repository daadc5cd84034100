import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.testing.small_models import small_model, small_tokenizer
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine import grammar
from arcforge_serving.engine.grammar import GrammarError, Grammars
from arcforge_serving.engine.paged import PagedEngine

TOKENIZER = small_tokenizer()
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PARTS = [[f"k{part}_{key}" for key in range(300)] for part in range(100)]
HUGE = {
    "anyOf": [
        {"type": "object", "properties": {key: {"type": "string"} for key in keys}, "required": keys} for keys in PARTS
    ]
}
TOOL_CALL = """
start: <tool_call> NAME <arg_key> "on" </arg_key> <arg_value> value </arg_value> </tool_call>
NAME: "get" | "put"
value: %json {"type": "boolean"}
"""


@pytest.fixture(scope="module")
def engine():
    return PagedEngine(PagedEngineConfig(), small_model(vocab_size=TOKENIZER.vocab_size + 5))


@pytest.fixture(scope="module")
def grammars(engine):
    return Grammars(TOKENIZER, engine.model.config.vocab_size)


def texts(engine, matcher, count=4, tokens=100):
    params = SamplingParams(max_new_tokens=tokens, matcher=matcher, n=count)
    outputs = engine.generate([[1, 2]], params)
    assert {output.finish_reason for output in outputs} <= {"stop", "length"}
    return [
        TOKENIZER.decode([t for t in o.token_ids if t != TOKENIZER.eos_id])
        for o in outputs
        if o.finish_reason == "stop"
    ]


def test_tables_are_made_once_for_the_first_grammar(monkeypatch):
    made, make = [], grammar.llguidance.LLTokenizer
    monkeypatch.setattr(
        grammar.llguidance, "LLTokenizer", lambda *given, **named: made.append(1) or make(*given, **named)
    )
    fresh = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    assert not made
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fresh.regex, ("a", "b", "c", "d")))
    assert made == [1]


def test_json_of_a_schema(engine, grammars):
    found = [json.loads(text) for text in texts(engine, grammars.json_schema(SCHEMA), 8)]
    assert len(found) >= 4
    assert all(type(value["a"]) is int and value["b"] in ("x", "yy") and len(value) == 2 for value in found)
    assert texts(engine, grammars.json_schema(json.dumps(SCHEMA)), 8) == texts(engine, grammars.json_schema(SCHEMA), 8)
    assert texts(engine, engine.json_matcher(TOKENIZER, SCHEMA), 8) == texts(engine, grammars.json_schema(SCHEMA), 8)
    with pytest.raises(ConfigError, match="schema"):
        engine.json_matcher(TOKENIZER, {"type": "no such type"})


def test_regular_expressions(engine, grammars):
    found = texts(engine, grammars.regex("[ab]{3}-[0-9]{1,4}!"))
    assert len(found) == 4
    assert all(re.fullmatch("[ab]{3}-[0-9]{1,4}!", text) for text in found)


def test_tool_calls_in_the_models_own_tags(engine, grammars):
    wanted = "<tool_call>(get|put)<arg_key>on</arg_key><arg_value>(true|false)</arg_value></tool_call>"
    found = texts(engine, grammars.lark(TOOL_CALL))
    assert len(found) == 4
    assert all(re.fullmatch(wanted, text) for text in found)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("regex", "("),
        ("lark", "start: nothing"),
        ("json_schema", "{"),
        ("json_schema", '{}}, {"regex": "a"'),
        ("json_schema", {"type": "integer", "minimum": 3, "maximum": 2}),
        ("json_schema", {"not": {}}),
        ("json_schema", HUGE),
    ],
    ids=["open", "unknown", "no json", "options", "impossible", "unsupported", "huge"],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_at_once(grammars, kind, given):
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"^(json_schema|regex|grammar)=") as caught:
        getattr(grammars, kind)(given)
    assert time.monotonic() - start < 60
    assert len(str(caught.value)) < 2000


def test_a_grammar_that_explodes_fails_its_own_request_in_bounded_time(engine, grammars):
    schema = {
        "type": "object",
        "properties": {f"k{i}": {"type": "string", "pattern": "(a|b)*a(a|b){20}"} for i in range(500)},
    }
    start = time.monotonic()
    try:
        streams = engine.submit([1, 2], SamplingParams(max_new_tokens=30, matcher=grammars.json_schema(schema)))
    except ConfigError:
        streams = []
    while engine.step():
        pass
    for stream in streams:
        try:
            stream.result(0)
        except ArcforgeError as error:
            assert isinstance(error, GrammarError)
    assert time.monotonic() - start < 60
    assert len(texts(engine, grammars.regex("a"), 1)) == 1


def test_ids_that_the_tokenizer_does_not_have_are_never_allowed(engine, grammars):
    mask = grammars.regex(".*")().allowed()
    assert mask.shape == (engine.model.config.vocab_size,)
    assert not mask[TOKENIZER.vocab_size :].any()
    assert mask[TOKENIZER.eos_id]

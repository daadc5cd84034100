"""Playing with an engine that says what a script tells it: answers, calls, errors, and ends before the end."""

import json

import pytest

from arcforge_core.chat.load import build_chat_template
from arcforge_core.config.schema import PlayConfig
from arcforge_core.configs import RecordedToolboxConfig
from arcforge_core.data.conversations.conversation import BadRecord
from arcforge_core.data.conversations.records import Row
from arcforge_core.eval.conversations.figures import ALL, by_source, measure, wilson
from arcforge_core.eval.conversations.items import load_items, make_item
from arcforge_core.eval.conversations.play import Player
from arcforge_core.eval.conversations.recorded import RecordedToolbox
from arcforge_core.testing.scripted_engine import ScriptedEngine
from arcforge_core.testing.small_models import small_tokenizer

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
USER = "<|user|>"
OBSERVATION = "<|observation|>"


def call(name="lookup", **arguments):
    given = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in arguments.items())
    return f"<tool_call>{name}{given}</tool_call>{OBSERVATION}"


def turn(question, answer, checked=True):
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if checked:
        messages[1]["checker"] = {"name": "number", "arguments": {"answer": answer}}
    return messages


def asks(*questions, **fields):
    """A record whose answers are the numbers 1, 2, ..."""
    messages = [m for n, question in enumerate(questions, 1) for m in turn(question, str(n))]
    return {"source": "sums", "thinking": "off", "messages": messages, **fields}


def looks_up(thinking="off"):
    made = {"role": "assistant", "content": ""}
    made["tool_calls"] = [{"type": "function", "function": {"name": "lookup", "arguments": {"key": "a"}}}]
    last = {"role": "assistant", "content": "7"}
    if thinking != "off":
        made["reasoning_content"] = last["reasoning_content"] = "I look."
    messages = [{"role": "user", "content": "a?"}, made, {"role": "tool", "content": "seven: 7"}, last]
    checker = {"name": "number", "arguments": {"answer": "7"}}
    return {"source": "lookup", "thinking": thinking, "tools": [LOOKUP], "messages": messages, "checker": checker}


def item_of(record, line=1):
    return make_item(Row("r.jsonl", line, record))


def play(script, *records, samples=1, positions=4000, **options):
    tokenizer = small_tokenizer()
    engine = ScriptedEngine(tokenizer, script)
    config = PlayConfig(**{"max_new_tokens": 200, **options})
    tries = [(item_of(record, n), sample) for n, record in enumerate(records) for sample in range(samples)]
    with RecordedToolbox(RecordedToolboxConfig()) as toolbox:
        player = Player(engine, build_chat_template(tokenizer), toolbox, config, positions)
        played = sorted(player.play(tries), key=lambda p: (p.item.line, p.sample))
        assert not toolbox._results, "every conversation was closed"
    return played, engine


def one(script, record, **options):
    (played,), _ = play(script, record, **options)
    return played


def test_an_answer_is_checked_by_the_record():
    def script(prompt, params):
        return ("it is 1" if "right" in prompt else "it is 5") + USER

    (right, wrong), engine = play(script, asks("right"), asks("wrong"))
    assert (right.verdict, wrong.verdict) == ("right", "wrong")
    assert right.answers[0].text == "it is 1" and wrong.answers[0].expected == "1"
    assert len(engine.rounds) == 1, "both in one batch"
    figures = measure([right, wrong])
    assert figures["exact"] == 0.5 and figures["answers"] == 2 and figures["thinking_off"] == 1.0
    assert "thinking_on" not in figures and "calls_valid" not in figures
    assert (figures["exact_low"], figures["exact_high"]) == wilson(1, 2)


def test_later_questions_follow_the_models_own_answers():
    asked = []

    def script(prompt, params):
        asked.append(prompt)
        return ("nine" if "second" not in prompt else "2") + USER

    played = one(script, asks("first", "second"))
    assert [a.right for a in played.answers] == [False, True] and played.verdict == "wrong"
    assert "first" in asked[1] and "nine" in asked[1], "it sees what it has said, not what the record says"
    assert [m.role for m in played.messages] == ["user", "assistant", "user", "assistant"]


def test_calls_are_run_and_what_was_sampled_stays_as_it_was():
    written = call(name=" lookup\n", key="a")  # which would be rendered without the white space

    def script(prompt, params):
        return written if "seven" not in prompt else "It is 7" + USER

    played, engine = play(script, looks_up())
    assert played[0].verdict == "right"
    assert [m.role for m in played[0].messages] == ["user", "assistant", "tool", "assistant"]
    assert played[0].messages[2].content == "seven: 7"
    first, second = engine.rounds[0][0], engine.rounds[1][0]
    assert second.startswith(first + written), "the ids that were sampled, not rendered anew"
    assert measure(played)["calls"] == 1 and measure(played)["calls_valid"] == 1.0


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (call(name="find", key="a"), "'find'"),
        (call(), "without key"),
        (call(key="a", more="b"), "more, which it does not take"),
        (f"<tool_call>lookup<arg_key>key</arg_key></tool_call>{OBSERVATION}", "has no value"),
        (f"<tool_call>lookup<arg_key>key</arg_key><arg_value>a</arg_value>{OBSERVATION}", "not closed"),
    ],
)
def test_invalid_calls_are_told_and_counted(made, error):
    def script(prompt, params):
        return "It is 7" + USER if "Error: " in prompt else made

    played = one(script, looks_up())
    assert error in played.messages[2].content and played.messages[2].content.startswith("Error: ")
    figures = measure([played])
    assert figures["calls"] == 1 and figures["calls_valid"] == 0.0
    assert played.verdict == "right", "what it says after the error counts"


def test_a_call_without_a_name_is_an_invalid_call_and_no_answer():
    played = one(lambda prompt, params: f"<tool_call></tool_call>7{USER}", looks_up())
    assert measure([played])["calls"] == 1 and measure([played])["calls_valid"] == 0.0


def test_a_failed_tool_tells_its_error():
    def script(prompt, params):
        return "I give up" + USER if "not in the record" in prompt else call(key="b")

    played = one(script, looks_up())
    assert played.verdict == "wrong" and measure([played])["calls_valid"] == 1.0, "the call was fine, the key was not"


def test_calls_without_end_are_ended():
    played = one(lambda prompt, params: call(key="a"), looks_up(), max_calls=3)
    assert played.verdict == "too many calls" and len(played.steps) == 4 and played.answers[0].right is False
    assert measure([played])["too_many_calls"] == 1.0


def test_calls_are_counted_from_each_question_on():
    record = looks_up()
    record["messages"] += [{"role": "user", "content": "and b?"}, {"role": "assistant", "content": "8"}]

    def script(prompt, params):
        return "It is 7" + USER if prompt.rpartition(USER)[2].count("<tool_response>") else call(key="a")

    played = one(script, record, max_calls=1)
    assert [answer.outcome for answer in played.answers] == ["answered", "answered"]


def test_endless_text_is_cut_off_and_later_turns_are_not_reached():
    played = one(lambda prompt, params: "1 " * 5000, asks("first", "second"))
    assert played.verdict == "truncated" and len(played.steps) == 1 and len(played.steps[0].token_ids) == 200
    assert [a.outcome for a in played.answers] == ["truncated", "not reached"]
    assert [a.right for a in played.answers] == [False, False], "a 1 that was cut off is no answer"
    assert measure([played])["truncated"] == 1.0 and measure([played])["answers"] == 2


def test_the_models_positions_bound_a_message():
    played = one(lambda prompt, params: "1 " * 5000, asks("first"), positions=40)
    assert played.verdict == "truncated" and len(played.steps[0].token_ids) < 40


def test_a_conversation_that_fills_the_model_ends():
    def script(prompt, params):
        return "9" * 60 + USER

    played = one(script, asks("first", "second" * 30), positions=110)
    assert [a.outcome for a in played.answers] == ["answered", "truncated"]


THOUGHT = "so it is</think>1" + USER


@pytest.mark.parametrize(
    ("thinking", "said", "obeyed"),
    [
        ("interleaved", THOUGHT, True),
        ("preserved", THOUGHT, True),
        ("interleaved", f"</think>1{USER}", False),
        ("interleaved", f" \n</think>1{USER}", False),
        ("interleaved", f"so it is 1{USER}", False),
        ("interleaved", f"so <tool_call>lookup</tool_call>{OBSERVATION}", False),
        ("off", f"1{USER}", True),
        ("off", f"<think>so it is</think>1{USER}", False),
    ],
)
def test_thinking_modes_are_obeyed_or_not(thinking, said, obeyed):
    played = one(lambda prompt, params: said, asks("first", thinking=thinking), max_calls=0)
    name = "thinking_off" if thinking == "off" else "thinking_on"
    assert played.steps[0].obeyed is obeyed
    assert measure([played])[name] == float(obeyed) and measure([played])[f"{name}_messages"] == 1


def test_interleaved_thinking_forgets_and_preserved_does_not():
    for thinking, remembered in (("interleaved", False), ("preserved", True)):
        prompts = []

        def script(prompt, params, prompts=prompts):
            prompts.append(prompt)
            return THOUGHT

        one(script, asks("first", "second", thinking=thinking))
        assert ("so it is" in prompts[1]) is remembered


def test_what_is_drawn_depends_on_the_record_and_the_try_alone():
    def script(prompt, params):
        seeds.append((prompt, params.seed))
        return "1" + USER

    seeds = []
    play(script, asks("one"), asks("two"), samples=2, temperature=1.0)
    together, seeds = sorted(seeds), []
    play(script, asks("one"), asks("two"), samples=2, temperature=1.0, batch_size=1)
    assert sorted(seeds) == together and len({seed for _, seed in seeds}) == 4


def test_conversations_take_the_place_of_those_that_ended():
    def script(prompt, params):
        return ("1" if "first" in prompt and "second" not in prompt else "2") + USER

    records = [asks("first", "second"), *[asks(f"first {n}") for n in range(5)]]
    played, engine = play(script, *records, batch_size=2)
    assert [p.verdict for p in played] == ["right"] * 6
    assert [len(prompts) for prompts in engine.rounds] == [2, 2, 2, 1]


def test_records_without_checkers_are_played_and_not_judged():
    record = asks("hello")
    del record["messages"][1]["checker"]
    played = one(lambda prompt, params: "hi" + USER, record)
    assert played.verdict == "unchecked" and played.answers[0].right is None
    assert measure([played])["answers"] == 0 and "exact" not in measure([played])


def test_figures_are_by_source_and_of_all():
    def script(prompt, params):
        return ("1" if "seven" not in prompt else "7") + USER

    played, _ = play(script, asks("x"), looks_up())
    figures = by_source(played)
    assert set(figures) == {"sums", "lookup", ALL}
    assert figures["sums"]["exact"] == 1.0 and figures["lookup"]["exact"] == 0.0 and figures[ALL]["exact"] == 0.5


@pytest.mark.parametrize(
    ("right", "count", "low", "high"), [(0, 0, 0, 1), (0, 10, 0, 0.2775), (450, 500, 0.8706, 0.9234)]
)
def test_wilson(right, count, low, high):
    assert wilson(right, count) == (pytest.approx(low, abs=2e-4), pytest.approx(high, abs=2e-4))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "nobody has asked"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "gets no answer"),
        ({"messages": [*turn("a", "1")[:1], {"role": "tool", "content": "x"}]}, "gets no answer"),
        (asks("x", checker={"name": "nobody"}), "nobody"),
        (asks("x", files={"a": 1}), "files must be"),
        ({"text": "x"}, "neither messages"),
    ],
)
def test_records_that_cannot_be_played_say_why(record, reason):
    with pytest.raises(BadRecord, match=reason):
        item_of(record)


def test_a_checker_in_the_middle_of_a_turn_is_refused():
    record = looks_up()
    record["messages"][1]["checker"] = {"name": "exact", "arguments": {"answer": "x"}}
    with pytest.raises(BadRecord, match=r"messages\[1\] has a checker"):
        item_of(record)


def test_bad_records_are_listed_and_a_limit_draws_by_seed(tmp_path):
    lines = [json.dumps(asks(f"q{n}")) for n in range(20)] + ["{", json.dumps({"messages": []})]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    items = load_items([str(tmp_path)], "files")
    assert len(items.chosen) == 20 and items.read == {"sums": 20}
    assert [r.line for r in items.rejections] == [21, 22]
    few = [load_items([str(tmp_path)], "files", 5, seed).chosen for seed in (0, 0, 1)]
    assert [i.line for i in few[0]] == [i.line for i in few[1]] != [i.line for i in few[2]]
    assert all(len(found) == 5 for found in few)

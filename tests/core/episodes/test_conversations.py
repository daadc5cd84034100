"""Conversation records played by a scripted engine: answers, calls, errors, and early ends."""

import asyncio
import json
import threading

import pytest

from arcforge_core.checkers import NumberChecker
from arcforge_core.config.schema import PlayConfig
from arcforge_core.configs import ConversationEnvironmentConfig
from arcforge_core.contracts.conversation import BadRecord
from arcforge_core.contracts.environment import EpisodeFailure, Reply
from arcforge_core.data.conversations.records import Row
from arcforge_core.episodes.conversation_tasks import Loaded, load_tasks, make_task
from arcforge_core.episodes.conversations import ConversationEnvironment
from arcforge_core.errors import ConfigError
from arcforge_core.eval.conversations import evaluate
from arcforge_core.eval.conversations.figures import ALL, by_source, conversation_row, measure, verdict, wilson
from arcforge_core.testing.environment_suite import play as play_script
from arcforge_core.testing.environment_suite import score
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from support.scripted_engine import ScriptedEngine

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


def task_of(record, line=1):
    return make_task(Row("r.jsonl", line, record))


def environment_of(*records, **options):
    tasks = [task_of(record, n) for n, record in enumerate(records)]
    return ConversationEnvironment(ConversationEnvironmentConfig(split="all", **options), Loaded(tasks, {}))


def play(script, *records, samples=1, positions=4000, max_calls=8, **options):
    tokenizer = small_tokenizer()
    engine = ScriptedEngine(tokenizer, script)
    config = PlayConfig(**{"max_new_tokens": 200, **options})
    environment = environment_of(*records, max_calls=max_calls)
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=positions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "default_engine", lambda name, model: engine)
        ended = evaluate.sample_tasks(model, tokenizer, config, environment, environment.tasks, samples)
        return sorted(ended, key=lambda rollout: rollout.number), engine


def answers(rollout):
    return conversation_row(rollout)["answers"]


def messages(rollout):
    return rollout.episode.messages


def said(rollout):
    """The number of the model's messages, and of its tokens."""
    return len(rollout.episode.artefacts["obeyed"]), conversation_row(rollout)["tokens"]


def one(script, record, **options):
    (played,), _ = play(script, record, **options)
    return played


def test_an_answer_is_checked_by_the_record():
    def script(prompt, params):
        return ("it is 1" if "right" in prompt else "it is 5") + USER

    (right, wrong), engine = play(script, asks("right"), asks("wrong"))
    assert (verdict(right), verdict(wrong)) == ("right", "wrong")
    assert answers(right)[0]["text"] == "it is 1" and answers(wrong)[0]["expected"] == "1"
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
    assert [a["right"] for a in answers(played)] == [False, True] and verdict(played) == "wrong"
    assert "first" in asked[1] and "nine" in asked[1], "it sees what it has said, not what the record says"
    assert [m.role for m in messages(played)] == ["user", "assistant", "user", "assistant"]


def test_calls_are_run_and_what_was_sampled_stays_as_it_was():
    written = call(name=" lookup\n", key="a")  # which would be rendered without the white space

    def script(prompt, params):
        return written if "seven" not in prompt else "It is 7" + USER

    played, engine = play(script, looks_up())
    assert verdict(played[0]) == "right"
    assert [m.role for m in messages(played[0])] == ["user", "assistant", "tool", "assistant"]
    assert messages(played[0])[2].content == "seven: 7"
    first, second = engine.rounds[0][0], engine.rounds[1][0]
    assert second.startswith(first + written), "the ids that were sampled, not rendered again"
    assert measure(played)["calls"] == 1 and measure(played)["calls_valid"] == 1.0


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (call(name="find", key="a"), "'find'"),
        (call(), "without key"),
        (call(key="a", more="b"), "more, which it does not accept"),
        (f"<tool_call>lookup<arg_key>key</arg_key></tool_call>{OBSERVATION}", "has no value"),
        (f"<tool_call>lookup<arg_key>key</arg_key><arg_value>a</arg_value>{OBSERVATION}", "not closed"),
    ],
)
def test_invalid_calls_are_told_and_counted(made, error):
    def script(prompt, params):
        return "It is 7" + USER if "Error: " in prompt else made

    played = one(script, looks_up())
    assert error in messages(played)[2].content and messages(played)[2].content.startswith("Error: ")
    figures = measure([played])
    assert figures["calls"] == 1 and figures["calls_valid"] == 0.0
    assert verdict(played) == "right", "what it says after the error counts"


def test_a_call_without_a_name_is_an_invalid_call_and_no_answer():
    played = one(lambda prompt, params: f"<tool_call></tool_call>7{USER}", looks_up())
    assert measure([played])["calls"] == 1 and measure([played])["calls_valid"] == 0.0


def test_a_failed_tool_tells_its_error():
    def script(prompt, params):
        return "I give up" + USER if "not in the record" in prompt else call(key="b")

    played = one(script, looks_up())
    assert verdict(played) == "wrong" and measure([played])["calls_valid"] == 1.0, "the call was fine, the key was not"


def test_calls_without_end_are_ended():
    played = one(lambda prompt, params: call(key="a"), looks_up(), max_calls=3)
    assert verdict(played) == "too many calls" and said(played)[0] == 4 and answers(played)[0]["right"] is False
    assert measure([played])["too_many_calls"] == 1.0


def test_calls_are_counted_from_each_question_on():
    record = looks_up()
    record["messages"] += [{"role": "user", "content": "and b?"}, {"role": "assistant", "content": "8"}]

    def script(prompt, params):
        return "It is 7" + USER if prompt.rpartition(USER)[2].count("<tool_response>") else call(key="a")

    played = one(script, record, max_calls=1)
    assert [a["outcome"] for a in answers(played)] == ["answered", "answered"]


def test_endless_text_is_cut_off_and_later_turns_are_not_reached():
    played = one(lambda prompt, params: "1 " * 5000, asks("first", "second"))
    assert verdict(played) == "truncated" and said(played) == (1, 200)
    assert [a["outcome"] for a in answers(played)] == ["truncated", "not reached"]
    assert [a["right"] for a in answers(played)] == [False, False], "a 1 that was cut off is no answer"
    assert measure([played])["truncated"] == 1.0 and measure([played])["answers"] == 2


def test_the_models_positions_bound_a_message():
    played = one(lambda prompt, params: "1 " * 5000, asks("first"), positions=40)
    assert verdict(played) == "truncated" and said(played)[1] < 40


def test_a_conversation_that_fills_the_model_ends():
    def script(prompt, params):
        return "9" * 60 + USER

    played = one(script, asks("first", "second" * 30), positions=110)
    assert [a["outcome"] for a in answers(played)] == ["answered", "truncated"]


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
    assert played.episode.artefacts["obeyed"] == [obeyed]
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
    assert [verdict(p) for p in played] == ["right"] * 6
    assert [len(prompts) for prompts in engine.rounds] == [2, 2, 2, 1]


def test_records_without_checkers_are_played_and_not_judged():
    record = asks("hello")
    del record["messages"][1]["checker"]
    played = one(lambda prompt, params: "hi" + USER, record)
    assert verdict(played) == "unchecked" and answers(played)[0]["right"] is None
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
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "without a question"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "gets no answer"),
        ({"messages": [*turn("a", "1")[:1], {"role": "tool", "content": "x"}]}, "gets no answer"),
        (asks("x", checker={"name": "nobody"}), "nobody"),
        (asks("x", files={"a": 1}), "files must be"),
        ({"text": "x"}, "must have messages"),
    ],
)
def test_records_that_cannot_be_played_say_why(record, reason):
    with pytest.raises(BadRecord, match=reason):
        task_of(record)


def test_a_checker_in_the_middle_of_a_turn_is_refused():
    record = looks_up()
    record["messages"][1]["checker"] = {"name": "exact", "arguments": {"answer": "x"}}
    with pytest.raises(BadRecord, match=r"messages\[1\] has a checker"):
        task_of(record)


def test_bad_records_are_listed_and_a_limit_draws_by_seed(tmp_path):
    lines = [json.dumps(asks(f"q{n}")) for n in range(20)] + ["{", json.dumps({"messages": []})]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    loaded = load_tasks([str(tmp_path)], "files")
    assert len(loaded.tasks) == 20 and loaded.read == {"sums": 20}
    assert [r.line for r in loaded.rejections] == [21, 22]
    few = [load_tasks([str(tmp_path)], "files", 5, seed).tasks for seed in (0, 0, 1)]
    assert [i.line for i in few[0]] == [i.line for i in few[1]] != [i.line for i in few[2]]
    assert all(len(found) == 5 for found in few)


def test_the_records_own_messages_earn_the_reward_and_cheats_do_not():
    environment = environment_of(asks("first", "second"), looks_up())
    for task in environment.tasks:
        assert score(environment, task, environment.oracle(task)).reward == 1.0
        for cheat in environment.cheats(task):
            assert score(environment, task, cheat).reward == 0.0


def test_each_checker_is_a_reward():
    environment = environment_of(asks("first", "second"))
    outcome = score(environment, environment.task(0), [Reply("1"), Reply("7")])
    assert outcome.rewards == {"reward": 0.5, "answer_1": 1.0, "answer_2": 0.0}
    assert outcome.reasons["reward"] == "answer_2: the answer is '7'"


def test_a_checker_that_waits_leaves_the_event_loop_free(monkeypatch):
    """Others play and sample there; a checker in a sandbox may take its 10 seconds."""
    environment, others_ran = environment_of(asks("first")), threading.Event()
    monkeypatch.setattr(NumberChecker, "check", lambda self, answer: others_ran.wait(60))

    async def scene():
        asyncio.get_running_loop().call_later(0.1, others_ran.set)
        return await play_script(environment, environment.task(0), [Reply("1")])

    _, outcome = asyncio.run(scene())
    assert outcome.rewards["reward"] == 1.0


def test_files_are_tasks_on_their_side_of_the_split(tmp_path):
    unchecked = {"messages": turn("hello", "hi", checked=False)}
    records = [*(asks(f"q{n}", task=f"sums/{n}") for n in range(40)), unchecked]
    (tmp_path / "sums.jsonl").write_text("\n".join(json.dumps(record) for record in records))

    def prompts(split):
        environment = ConversationEnvironment(ConversationEnvironmentConfig(files=[str(tmp_path)], split=split))
        assert environment.domain_of(environment.task(0)) == "sums"
        return {environment.task(n).prompt for n in range(environment.num_tasks)}

    train, heldout = prompts("train"), prompts("heldout")
    assert train and heldout and not train & heldout
    assert prompts("all") == train | heldout == {f"q{n}" for n in range(40)}
    (tmp_path / "sums.jsonl").write_text(json.dumps(unchecked))
    with pytest.raises(ConfigError, match="no record with a checker is on this side"):
        prompts("all")
    with pytest.raises(ConfigError, match=r"environment\.files=\[\]: name files"):
        ConversationEnvironment(ConversationEnvironmentConfig())


def test_a_broken_checker_is_a_failure_and_no_wrong_answer(monkeypatch):
    class Broken:
        def check(self, answer):
            raise EpisodeFailure("sandbox", "it is gone")

    monkeypatch.setattr("arcforge_core.episodes.conversation_tasks.build_checker", lambda *args: Broken())
    (played,), _ = play(lambda prompt, params: "1" + USER, asks("first"))
    assert played.outcome.failure.reason == "it is gone" and played.outcome.rewards == {}
    with pytest.raises(evaluate.ArcforgeError, match="all rollouts failed; the first: sandbox: it is gone"):
        evaluate.failures([played])
    (fine,), _ = play(lambda prompt, params: "1" + USER, {"messages": turn("hello", "hi", checked=False)})
    assert [r.reason for r in evaluate.failures([played, fine])] == ["sandbox: it is gone"]


@pytest.mark.parametrize(
    ("toolbox", "environment"), [("sandbox", "sandbox_conversations"), ("recorded", "conversations")]
)
def test_the_old_option_names_the_new_one(toolbox, environment, capsys):
    assert PlayConfig(toolbox=toolbox).environment == environment
    assert f"toolbox={toolbox} is now environment={environment}" in capsys.readouterr().err


def test_other_toolboxes_say_what_became_of_the_kind():
    with pytest.raises(ConfigError, match=r"toolbox='mine': .*override `tools`"):
        PlayConfig(toolbox="mine")

"""All sources, through the command: what it writes can be read back, checked again, and keeps the sides apart."""

import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from arcforge_core.checkers import build_checker
from arcforge_core.cli.main import run_job
from arcforge_core.config.schema import TokenizerConfig
from arcforge_core.configs import ConversationsDataConfig
from arcforge_core.contracts.sandbox import Command
from arcforge_core.data.conversations.parse import parse
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ConfigError
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_rl.configs.commands import SOURCES, ConversationsConfig
from arcforge_rl.problems.problem import HELDOUT, TRAIN, side
from arcforge_rl.problems.write import ALIKE, PLACES, Maker, load_source
from arcforge_rl.sandbox.sync import Desk

PURE = ("arithmetic", "expressions", "terse_expressions", "algebra", "everyday")
REPEATED = ("arithmetic", "everyday", "everyday_calculator")
"""Sources that ask about the same operands in several ways."""
pytestmark = pytest.mark.slow(reason="opens a sandbox for each of some eighty problems, and reads the standard library")
Made = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def desk() -> Any:
    with Desk() as desk:
        yield desk


@pytest.fixture(scope="module")
def made(desk: Desk) -> Made:
    """Some conversations of every source, for both sides."""
    counts = {name: 40 if name in PURE else 3 for name in SOURCES}
    return {
        (name, s): list(Maker(name, s, 0, desk).records(counts[name])) for name in SOURCES for s in (TRAIN, HELDOUT)
    }


def test_every_source_is_named_and_made(made: Made) -> None:
    assert set(PLACES) == set(SOURCES)
    assert all(made.values())


@pytest.mark.parametrize("name", SOURCES)
def test_records_are_conversations_whose_answers_hold(made: Made, name: str) -> None:
    for record in (*made[name, TRAIN], *made[name, HELDOUT]):
        conversation = parse(record, "openai", "interleaved", mask_errors=True)
        assert conversation.source == name and conversation.mode == record["thinking"]
        answers = [n for n, m in enumerate(conversation.messages) if m.role == "assistant" and not m.tool_calls]
        assert sorted(check.message for check in conversation.checks) == answers, "every answer has its checker"
    for check in conversation.checks:  # of the last record; all of them are checked in the test below
        assert build_checker(check.name, check.arguments).check(conversation.messages[check.message].content)
        assert not build_checker(check.name, check.arguments).check("no idea")


@pytest.mark.parametrize("name", SOURCES)
def test_sides_share_no_operands(made: Made, name: str) -> None:
    tasks = [{task for record in made[name, s] for task in record["task"].split(" ; ")} for s in (TRAIN, HELDOUT)]
    assert tasks[0] and tasks[1] and not tasks[0] & tasks[1]
    if name in PURE:
        assert all(
            side(ALIKE.get(name, name), task.partition("/")[2]) == s
            for s, found in zip((TRAIN, HELDOUT), tasks, strict=True)
            for task in found
        )


def test_the_same_problem_is_on_one_side_whichever_way_it_is_worked_out(made: Made) -> None:
    tasks = {
        (n, s): {t for r in made[n, s] for t in r["task"].split(" ; ")}
        for n in ("expressions", "terse_expressions")
        for s in (TRAIN, HELDOUT)
    }
    assert all(task.startswith("expressions/") for task in tasks["terse_expressions", HELDOUT])
    assert not tasks["terse_expressions", TRAIN] & tasks["expressions", HELDOUT]
    assert not tasks["terse_expressions", HELDOUT] & tasks["expressions", TRAIN]


def test_the_split_holds_a_fifth_out() -> None:
    sides = Counter(side("arithmetic", f"{a},{b}") for a in range(100) for b in range(a, 100))
    assert 0.17 < sides[HELDOUT] / sides.total() < 0.23


@pytest.mark.parametrize("name", SOURCES)
def test_all_modes_of_a_source_occur_and_off_has_no_reasoning(made: Made, name: str) -> None:
    records = made[name, TRAIN]
    thinking = {record["thinking"] for record in records}
    if name != "puzzles":  # of which some kinds have no reasoning to show
        assert thinking == set(load_source(*PLACES[name].split(":")).modes)
    for record in records:
        reasons = [m.get("reasoning_content") for m in record["messages"] if m["role"] == "assistant"]
        assert all(reasons) if record["thinking"] != "off" else not any(reasons)


def test_problems_are_not_asked_twice(made: Made) -> None:
    for (name, _), records in made.items():
        tasks = [task for record in records for task in record["task"].split(" ; ")]
        assert name in REPEATED or len(tasks) == len(set(tasks))


def test_few_operands_are_asked_about_in_many_ways_and_on_one_side(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker("arithmetic", TRAIN, 0, desk)
    monkeypatch.setattr(maker.source, "lengths", (1,))
    records = list(maker.records(400))
    tasks = [task for record in records for task in record["task"].split(" ; ")]
    questions = [m["content"] for record in records for m in record["messages"] if m["role"] == "user"]
    assert len(questions) == len(set(questions)) > 300 and len(set(tasks)) <= 55
    assert all(side("arithmetic", task.partition("/")[2]) == TRAIN for task in tasks)


@pytest.mark.parametrize("name", ["algebra", "traces", "lookup"])
def test_the_same_seed_gives_the_same_records_and_another_one_others(made: Made, desk: Desk, name: str) -> None:
    records = made[name, TRAIN][:2]
    assert list(Maker(name, TRAIN, 0, desk).records(2)) == records
    assert list(Maker(name, TRAIN, 1, desk).records(2)) != records


def test_a_system_message_stands_before_each_conversation(made: Made, desk: Desk) -> None:
    told = list(Maker("algebra", TRAIN, 0, desk, "Answer with a number.").records(2))
    assert [record["messages"][0] for record in told] == [{"role": "system", "content": "Answer with a number."}] * 2
    assert [{**record, "messages": record["messages"][1:]} for record in told] == made["algebra", TRAIN][:2]
    assert parse(told[0], "openai", "interleaved", mask_errors=True).messages[0].role == "system"
    with pytest.raises(ConfigError, match="system=' ': must not be blank"):
        ConversationsConfig(system=" ")


def test_results_of_tools_are_what_the_tools_give(made: Made) -> None:
    for record in (*made["calculator", TRAIN], *made["calculator", HELDOUT]):
        for call, result in zip(record["messages"], record["messages"][1:], strict=False):
            if result["role"] == "tool" and not result["content"].startswith("Error"):
                assert str(eval(call["tool_calls"][0]["function"]["arguments"]["expression"])) == result["content"]


@pytest.mark.parametrize("name", ["calculator", "lookup"])
def test_calls_made_ahead_give_the_same_records_in_fewer_processes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    processes: list[Command] = []
    run = Desk.run
    monkeypatch.setattr(Desk, "run", lambda desk, command: processes.append(command) or run(desk, command))
    monkeypatch.setattr("arcforge_rl.problems.dialogues.FAILURES", 0.5)
    monkeypatch.setattr("arcforge_rl.problems.write.AHEAD", 8)
    ahead = list(Maker(name, TRAIN, 0, desk).records(16))
    assert len(processes) <= 2 * (1 + len(max(ahead, key=lambda record: len(record["messages"]))["messages"]) // 2)
    few = len(processes)
    monkeypatch.setattr(Maker, "_rehearse", lambda *args: None)
    assert list(Maker(name, TRAIN, 0, desk).records(16)) == ahead
    assert len(processes) - few >= 16


def test_a_process_that_fails_leaves_the_calls_to_be_made_one_by_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = list(Maker("lookup", TRAIN, 0, desk).records(3))
    monkeypatch.setattr("arcforge_rl.problems.tools.use_many", lambda *args: None)
    assert list(Maker("lookup", TRAIN, 0, desk).records(3)) == records


@pytest.mark.parametrize("name", ["calculator", "lookup", "python"])
def test_calls_that_failed_are_masked_and_what_mends_them_is_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("arcforge_rl.problems.dialogues.FAILURES", 1.0)
    source = load_source(*PLACES[name].split(":"))
    problem = source.draw(random.Random(0))
    desk.lay(problem.files)
    solution = problem.solve(desk)
    assert solution is not None and solution[2]["content"].startswith("Error")
    record = {"messages": solution, "tools": list(source.tools)}
    conversation = parse(record, "auto", "preserved", mask_errors=True)
    assert [m.trained for m in conversation.messages] == [True, False, True, True, True, True]


def test_a_source_that_is_used_up_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcforge_rl.problems.numbers.ASKED", ("{}",))
    maker = Maker("arithmetic", TRAIN, 0, desk)
    source = maker.source
    draw_one = source.draw
    monkeypatch.setattr(source, "draw", lambda draw: draw_one(random.Random(draw.randrange(7))))
    records = list(maker.records(100))
    assert 0 < sum(len(record["task"].split(" ; ")) for record in records) <= 7


def test_the_command_writes_files_that_data_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    out = tmp_path / "out"
    arguments = ["sources=[arithmetic,algebra,lookup]", "count=6", "heldout=2", f"output_dir={out}"]
    monkeypatch.setattr(sys, "argv", ["arcforge-conversations", *arguments])
    assert run_job("conversations") == 0
    assert "arithmetic, train" in capsys.readouterr().out
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.jsonl"))
    assert files == [
        f"{s}/{corpus}/{name}.jsonl"
        for s in (HELDOUT, TRAIN)
        for corpus, name in (("agent", "lookup"), ("reasoning", "algebra"), ("reasoning", "arithmetic"))
    ]
    assert len((out / "train/agent/lookup.jsonl").read_text().splitlines()) == 6
    small_tokenizer().save(tmp_path / "tokenizer")
    settings = ConversationsDataConfig(
        reasoning=[str(out / "train/reasoning")],
        agent=[str(out / "train/agent")],
        tokenizer=TokenizerConfig(path=str(tmp_path / "tokenizer")),
        cache_dir=str(tmp_path),
        heldout=0.0,
    )
    corpus = build_data(settings, model_vocab_size=4096, progress=False)
    figures = corpus.manifest["encoder"]
    assert figures["rejected"] == {} and set(figures["sources"]) == {"arithmetic", "algebra", "lookup"}
    assert (corpus.folder / "rejected.jsonl").read_text() == ""
    assert figures["tools"]["lookup"] >= 6


def test_a_wrong_answer_is_found_again(tmp_path: Path, made: Made) -> None:
    """Every record's last answer is changed: the checkers let none of them through."""
    records = [json.loads(json.dumps(made[name, TRAIN][0])) for name in SOURCES]
    for record in records:
        record["messages"][-1]["content"] = re.sub(r"\w", "q", record["messages"][-1]["content"])
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in [*records, made["algebra", TRAIN][1]])
    )
    small_tokenizer().save(tmp_path / "tokenizer")
    tokenizer = TokenizerConfig(path=str(tmp_path / "tokenizer"))
    settings = ConversationsDataConfig(
        chat=[str(tmp_path / "a.jsonl")], tokenizer=tokenizer, cache_dir=str(tmp_path), heldout=0.0
    )
    corpus = build_data(settings, model_vocab_size=4096, progress=False)
    rejected = [json.loads(line) for line in (corpus.folder / "rejected.jsonl").read_text().splitlines()]
    assert [(r["line"], r["rule"]) for r in rejected] == [(n + 1, "answers") for n in range(len(SOURCES))]


@pytest.mark.parametrize(
    "settings", [{"sources": []}, {"sources": ["sums"]}, {"count": -1}, {"heldout": -1}, {"seed": -1}]
)
def test_bad_settings_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ConversationsConfig(**settings)

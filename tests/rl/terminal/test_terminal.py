"""Tasks are played in sandboxes: the oracle of every family earns 1; silence and cheats earn 0."""

import asyncio
import json
import sys

import pytest

from arcforge_core.contracts.chat import ToolCall
from arcforge_core.contracts.environment import Agents, EpisodeFailure, Reply
from arcforge_core.episodes.scripted import SILENCE, ScriptedAgent, play
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.cli import main
from arcforge_rl.configs.environments import TERMINAL_FAMILIES, TerminalConfig
from arcforge_rl.terminal.cheating import CHEATS
from arcforge_rl.terminal.environment import Terminal, TerminalTask, calling, read_folders
from arcforge_rl.terminal.harbor import HarborStep, HarborTask, write_task
from arcforge_rl.terminal.table import FAMILIES, drawn, drawn_task

GRADE = b"""#!/bin/bash
mkdir -p /logs/verifier
"""


def small(grade, dockerfile="FROM x\nWORKDIR /app\nCOPY note.txt .\n", **settings):
    """A task that is done when /app/answer holds 42."""
    settings = {"schema_version": "1.4", **settings}
    tests = {"test.sh": GRADE + grade, "secret.txt": b"42\n"}
    environment = {"Dockerfile": dockerfile.encode(), "note.txt": b"hello\n"}
    solution = {"solve.sh": b"#!/bin/bash\n. /solution/part.sh\n", "part.sh": b"echo $ANSWER > answer\n"}
    return HarborTask("small", "Write 42 to /app/answer.", environment, tests, solution, settings)


EQUAL = b"if cmp -s answer /tests/secret.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
ENV = {"solution": {"env": {"ANSWER": "42"}}}


def terminal(**options):
    return Terminal(TerminalConfig(**options))


def as_task(harbor):
    return TerminalTask(harbor.name, harbor.instruction, "", harbor, CHEATS, harbor.name)


def earned(environment, task, *scripts):
    """Returns (reward, reason) of each script; all are played at the same time, in one world."""

    async def all_of_them():
        return await asyncio.gather(*[play(environment, task, script) for script in scripts])

    outcomes = [outcome for _, outcome in asyncio.run(all_of_them())]
    assert [outcome.failure for outcome in outcomes] == [None] * len(scripts)
    return [(outcome.reward, outcome.reasons["reward"]) for outcome in outcomes]


def said(environment, harbor, *commands):
    """Returns the results of commands."""
    agents = Agents(ScriptedAgent([*map(calling, commands), Reply("Done.")]))
    episode = asyncio.run(environment.run(as_task(harbor), agents))
    return [message.content for message in episode.messages if message.role == "tool"]


@pytest.mark.slow(reason="seven plays with two or three sandboxes each, some of which build or serve")
@pytest.mark.parametrize("family", FAMILIES)
def test_oracle_noop_and_cheats_of_a_family(family):
    environment = terminal(families=[family])
    task = environment.task(0)
    scripts = [environment.oracle(task), SILENCE, *environment.cheats(task)[: -len(CHEATS)]]
    assert len(scripts) >= 5
    rewards = earned(environment, task, *scripts)
    assert [reward for reward, _ in rewards] == [1.0] + [0.0] * (len(scripts) - 1), rewards


@pytest.mark.nightly(reason="three repeats of all scripts on two tasks of every family")
@pytest.mark.parametrize("family", FAMILIES)
def test_three_repeats_of_everything(family):
    for split in ("train", "heldout"):
        environment = terminal(families=[family], split=split)
        task = environment.task(1)
        scripts = [environment.oracle(task), SILENCE, *environment.cheats(task)]
        for _ in range(3):
            rewards = [reward for reward, _ in earned(environment, task, *scripts)]
            assert rewards == [1.0] + [0.0] * (len(scripts) - 1)


@pytest.mark.slow(reason="six plays with two sandboxes each")
def test_cheats_that_know_nothing_of_a_task():
    environment, task = terminal(), as_task(small(EQUAL, **ENV))
    rewards = earned(environment, task, environment.oracle(task), SILENCE, *environment.cheats(task))
    assert [reward for reward, _ in rewards] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], rewards


@pytest.mark.slow(reason="a dozen plays with two sandboxes each")
@pytest.mark.parametrize(
    ("grade", "reason"),
    [
        (b"ln -s /tests/secret.txt /logs/verifier/reward.txt", "reward.txt: /logs/verifier/reward.txt: is a link"),
        (b"mkfifo /logs/verifier/reward.txt", "is not a regular file"),
        (b"mkdir /logs/verifier/reward.json", "is not a regular file"),
        (b"echo nan > /logs/verifier/reward.txt", "nan is not finite"),
        (b"echo 7 > /logs/verifier/reward.txt", "must be in"),
        (b"head -c 100000 /dev/zero > /logs/verifier/reward.txt", "longer than"),
        (b"exit 3", "left no reward"),
    ],
)
def test_reward_files_that_are_none(grade, reason):
    environment, task = terminal(), as_task(small(grade))
    [(reward, why)] = earned(environment, task, SILENCE)
    assert reward == 0.0 and reason in why and "\n" not in why


def test_rewards_between_and_several():
    harbor = small(b"""echo '{"one": 1, "two": 0.5}' > /logs/verifier/reward.json; echo almost\n""")
    assert earned(terminal(), as_task(harbor), SILENCE) == [(0.75, "almost")]


def test_what_an_agent_sees():
    recipe = 'FROM x\nENV COLOUR="dark blue"\nWORKDIR /srv\nCOPY note.txt /srv/\nCOPY note.txt /opt/in/\n'
    recipe += "RUN wc -c note.txt > size"
    seen = said(
        terminal(), small(EQUAL, recipe),
        "pwd; cat note.txt size /opt/in/note.txt; echo $COLOUR",
        "ls /tests /logs/verifier; ls -A /solution | wc -l; exit 4",
        "seq 100000", "true",
    )  # fmt: skip
    assert seen[0] == "/srv\nhello\n6 note.txt\nhello\ndark blue"
    assert "0\n" in seen[1] and "'/tests': No such file" in seen[1] and seen[1].endswith("[exit 4]")
    assert seen[2].startswith("1\n2\n") and seen[2].endswith("99999\n100000") and "left out" in seen[2]
    assert seen[3] == ""


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("FROM x\nUSER root", "Dockerfile:2: USER: not offered"),
        ("FROM x\nRUN echo no >&2; exit 9", "Dockerfile:2: RUN ended with exit 9 in a sandbox: no"),
        ("FROM x\nCOPY missing .", "Dockerfile:2: COPY missing"),
    ],
)
def test_worlds_that_cannot_be_built(recipe, reason):
    environment = terminal()
    with pytest.raises(DataError, match=reason):
        asyncio.run(play(environment, as_task(small(EQUAL, recipe)), SILENCE))
    assert environment._worlds._used == {}


@pytest.mark.slow(reason="four plays with three sandboxes each")
def test_the_verifier_gets_what_is_declared():
    grade = b"cat answer note.txt /logs/artifacts/* 2>&1 | tr '\\n' ' '; echo 1 > /logs/verifier/reward.txt\n"
    script = [calling("echo 41 > answer; echo changed > note.txt; echo mine > /logs/artifacts/a"), Reply("Done.")]

    def told(**settings):
        [(_, reason)] = earned(terminal(), as_task(small(grade, **settings)), script)
        return reason

    assert told() == "41 changed mine"
    separate = {"environment_mode": "separate"}
    assert told(verifier=separate, artifacts=["/app"]) == "41 changed mine"
    assert told(verifier=separate, artifacts=["answer"]) == "41 hello mine"
    hook = [{"command": "cat note.txt answer > /logs/artifacts/b; ls /tests >> /logs/artifacts/b; echo late > answer"}]
    assert told(verifier={"collect": hook}) == "41 changed changed 41"


@pytest.mark.slow(reason="six plays with up to five sandboxes each")
def test_steps_are_judged_one_after_the_other():
    def stepped(**more):
        steps = []
        for name, number in (("one", 1), ("two", 2)):
            grade = (
                f"if grep -qsx {number} answer; then r=1; else r=0; fi\necho $r > /logs/verifier/reward.txt; echo $r"
            )
            tests, solution = {"test.sh": GRADE + grade.encode()}, {"solve.sh": f"echo {number} >> answer".encode()}
            steps.append(HarborStep(name, f"Append {number}.", tests, solution))
        settings = {
            "schema_version": "1.4",
            "steps": [{"name": "one", **more.pop("first", {})}, {"name": "two"}],
            **more,
        }
        return as_task(HarborTask("s", "", small(EQUAL).environment, {}, {}, settings, tuple(steps)))

    environment, task = terminal(), stepped()
    second = [Reply("nothing"), calling("echo 2 > answer"), Reply("Done.")]
    assert earned(environment, task, environment.oracle(task), SILENCE, second) == [
        (1.0, "one: 1 (1); two: 1 (1)"),
        (0.0, "one: 0 (0); two: 0 (0)"),
        (0.5, "one: 0 (0); two: 1 (1)"),
    ]
    assert earned(environment, stepped(multi_step_reward_strategy="final"), second)[0][0] == 1.0
    for least in (0.5, {"reward": 1, "other": 1}):
        assert earned(environment, stepped(first={"min_reward": least}), second) == [(0.0, "one: 0 (0)")]
    episode = asyncio.run(environment.run(task, Agents(ScriptedAgent(environment.oracle(task)))))
    assert [message.content for message in episode.messages if message.role == "user"] == ["Append 1.", "Append 2."]


def test_health_checks():
    def checked(command):
        check = {"command": command, "retries": 2, "interval_sec": 0.01}
        return asyncio.run(play(terminal(), as_task(small(EQUAL, environment={"healthcheck": check})), SILENCE))

    assert checked("echo x >> /tmp/tries; test $(wc -l < /tmp/tries) = 3")[1].reward == 0.0
    with pytest.raises(EpisodeFailure, match="the health check ended with exit 1"):
        checked("false")


def test_tasks_are_drawn_again_and_split():
    first, second, heldout = terminal(), terminal(), terminal(split="heldout")
    assert first.task(5) == second.task(5) and first.labels_of(first.task(5)) == (first.task(5).family,)
    assert {first.task(index).family for index in range(len(FAMILIES))} == set(FAMILIES)
    sides = [{environment.task(index).key for index in range(60)} for environment in (first, heldout)]
    assert not sides[0] & sides[1] and min(map(len, sides)) > 50
    by_family = [terminal(split=split, heldout="family") for split in ("train", "heldout")]
    assert sorted(by_family[0].families + by_family[1].families) == sorted(FAMILIES) and all(by_family)
    with pytest.raises(ConfigError, match="none of these families"):
        terminal(families=by_family[0].families, split="heldout", heldout="family")


def test_every_family_draws_many_different_tasks():
    assert set(TERMINAL_FAMILIES) == set(FAMILIES) and len(FAMILIES) >= 12
    for family in FAMILIES:
        drafts = [drawn(family, number) for number in range(8)]
        assert drafts[0] == drawn(family, 0) and len({json.dumps(draft.rules) for draft in drafts}) == len(drafts)
        for draft in drafts:
            assert (
                len(draft.cheats) >= 3
                and draft.solve not in draft.cheats
                and len(set(draft.cheats)) == len(draft.cheats)
            )


@pytest.mark.parametrize(
    "options",
    [
        {"families": ["logz"]},
        {"heldout": "x"},
        {"tools": []},
        {"tools": ["zsh"]},
        {"max_calls": 0},
        {"command_seconds": 0},
    ],
)
def test_options_that_are_refused(options):
    with pytest.raises(ConfigError):
        TerminalConfig(**options)


def test_folders(tmp_path):
    with pytest.raises(DataError, match="has no task"):
        read_folders(tmp_path)
    for number in range(12):
        write_task(drawn_task("logs", number)[0], tmp_path / f"logs-{number}")
    sides = [
        {task.name for task in terminal(path=str(tmp_path), split=split).folders} for split in ("train", "heldout")
    ]
    assert len(sides[0] | sides[1]) == 12 and not sides[0] & sides[1]
    one = terminal(path=str(tmp_path / "logs-3"), whole=True)
    assert one.num_tasks == 1 and one.task(7).prompt.startswith("A web server")
    write_task(HarborTask("x", "Do.", {"Dockerfile": b""}, {"test.sh": b""}), tmp_path / "x")
    with pytest.raises(ConfigError, match=r"no solution/solve\.sh"):
        one.oracle(as_task(read_folders(tmp_path / "x")[0]))
    toml = tmp_path / "x/task.toml"
    toml.write_text('schema_version = "1.4"\n[environment]\nnetwork_mode = "public"\n')
    with pytest.raises(DataError, match=r"x: environment\.network_mode: sandboxes have no network"):
        read_folders(tmp_path)


def test_the_command(tmp_path, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["arcforge-env", "terminal", *map(str, words)])
        code = main()
        return code, capsys.readouterr()

    assert run("write", tmp_path / "t", "--count", 3, "--families", "logs,sql") == (
        0,
        (f"3 tasks in {tmp_path}/t\n", ""),
    )
    assert len(read_folders(tmp_path / "t")) == 3
    assert run("check", tmp_path / "t")[1].out == "3 of 3 tasks can be played\n"
    first = next(path for path in (tmp_path / "t").iterdir())
    (first / "environment/Dockerfile").write_text("FROM x\nUSER me\n")
    code, printed = run("check", tmp_path / "t")
    assert code == 2 and "Dockerfile:2: USER" in printed.out and "2 of 3" in printed.out
    for words in (
        ("check", tmp_path),
        ("write", tmp_path / "u", "--families", "logz"),
        ("write", tmp_path, "--count", 0),
    ):
        code, printed = run(*words)
        assert code == 2 and printed.err.count("\n") == 1


def test_unknown_tools_and_no_calls_are_no_work():
    calls = (ToolCall("no_such_tool", {}),)
    [(reward, reason)] = earned(terminal(), as_task(small(EQUAL)), [Reply(calls=calls), Reply("42")])
    assert reward == 0.0 and reason

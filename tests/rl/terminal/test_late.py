"""Verifiers that exceed their time limit: work that stalls them is wrong, a verifier that never ends is a failure."""

import asyncio

import pytest

from arcforge_core.contracts.environment import EpisodeFailure, Reply
from arcforge_core.episodes.scripted import SILENCE, play
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.terminal.environment import LATE, Terminal, TerminalTask, calling
from arcforge_rl.terminal.harbor import HarborStep, HarborTask

GRADE = 'if [ "$(cat answer)" = 42 ]; then r=1; else r=0; fi; echo $r > /logs/verifier/reward.txt\n'
STALL = "rm -f answer; ln -s /dev/ptmx answer"
"""A reader of the file waits for keys of a terminal that has none, and uses no processor time meanwhile."""
WORLD = {"Dockerfile": b"FROM x\nWORKDIR /app\n"}
SOLUTION = {"solve.sh": b"echo 42 > answer\n"}


def task_of(grade, solution=SOLUTION, seconds=1.0):
    settings = {"schema_version": "1.4", "verifier": {"timeout_sec": seconds}}
    harbor = HarborTask("small", "Write 42 to answer.", WORLD, {"test.sh": grade.encode()}, solution, settings)
    return TerminalTask("small", harbor.instruction, "", harbor, (), "small")


def played(task, *commands):
    environment = Terminal(TerminalConfig())
    script = [*map(calling, commands), Reply("Done.")]
    return asyncio.run(play(environment, task, script))[1]


@pytest.mark.slow(reason="two time limits of a verifier, which are mostly waiting")
def test_work_that_stalls_its_verifier_is_wrong():
    for seconds in (1.0, 20.0):  # on a busy machine a verifier may need more to end over the solution
        outcome = played(task_of(GRADE, seconds=seconds), STALL)
        if outcome.failure is None:
            break
    assert outcome.failure is None and outcome.rewards["reward"] == 0.0 and outcome.reasons["reward"] == LATE


@pytest.mark.nightly(reason="four time limits of a verifier")
@pytest.mark.parametrize("solution", [SOLUTION, {}])
def test_a_verifier_that_never_ends_is_a_failure(solution):
    outcome = played(task_of("sleep 60\n", solution), "echo 42 > answer")
    assert outcome.failure is not None and outcome.failure.kind == "verifier" and not outcome.rewards
    assert "neither over the agent's work nor" in outcome.failure.reason


@pytest.mark.nightly(reason="four time limits of a verifier")
def test_no_work_is_the_control_of_a_task_without_solution():
    assert played(task_of(f"test -e answer || exit 1\n{GRADE}", {}), STALL).reasons["reward"] == LATE


@pytest.mark.nightly(reason="time limits of a verifier")
def test_steps_with_health_checks_and_stalled_verifiers():
    def stepped(command):
        steps = tuple(HarborStep(name, "Write 42.", {"test.sh": GRADE.encode()}, SOLUTION) for name in ("one", "two"))
        check = {"command": command, "retries": 0}
        settings = {
            "schema_version": "1.4", "verifier": {"timeout_sec": 1.0},
            "steps": [{"name": "one"}, {"name": "two", "healthcheck": check}],
        }  # fmt: skip
        harbor = HarborTask("s", "", WORLD, {}, {}, settings, steps)
        return TerminalTask("s", "", "", harbor, (), "s")

    def earned(command, *script):
        outcome = asyncio.run(play(Terminal(TerminalConfig()), stepped(command), script))[1]
        assert outcome.failure is None
        return outcome.rewards["reward"], outcome.reasons["reward"]

    right = [calling("echo 42 > answer"), Reply("Done.")]
    assert earned("test -f answer", *right, Reply("Done."))[0] == 1.0
    assert earned("test -f answer", *SILENCE) == (0.0, "one: 0 (reward 0)")  # not its environment's failure
    mended = [calling("rm answer; echo 42 > answer"), Reply("Done.")]
    assert earned("true", calling(STALL), Reply("Done."), *mended) == (0.5, f"one: 0 ({LATE}); two: 1 (reward 1)")
    with pytest.raises(EpisodeFailure, match="the health check ended"):
        earned("false", *right)

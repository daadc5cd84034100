"""Whatever a verifier does, the outcome is a number in [0, 1] with a reason, in bounded time."""

import asyncio
import http.client
import importlib.util
import math
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import httpx
import pytest

from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agents, Episode, Failure, NoVerdict, Reply, Score, Task
from arcforge_core.episodes import killable
from arcforge_core.episodes.rewards import as_score, metric, reward
from arcforge_core.episodes.scripted import SILENCE, ScriptedAgent, play
from arcforge_core.errors import ArcforgeError, ConfigError


def module():
    """The hostile environments, imported as a script's would be: nobody can import them by name."""
    spec = importlib.util.spec_from_file_location("hostile_environments", Path(__file__).with_name("hostile.py"))
    made = importlib.util.module_from_spec(spec)
    sys.modules["hostile_environments"] = made
    spec.loader.exec_module(made)
    return made


hostile = module()


def outcome(kind, deed, text="!"):
    environment = kind(hostile.HostileConfig(deed=deed))
    return asyncio.run(play(environment, environment.task(0), [Reply(text)]))[1]


@pytest.mark.parametrize(
    ("deed", "value", "reason"),
    [
        ("answer", 1.0, "right"),
        ("true", 1.0, "right"),
        ("print", 0.5, "scored 0.5"),
        ("long reason", 0.25, "zzz"),
        ("raise", 0.0, "raised ZeroDivisionError"),
        ("exit", 0.0, "raised SystemExit"),
        ("nan", 0.0, "nan"),
        ("infinite", 0.0, "inf"),
        ("negative", 0.0, "-1"),
        ("two", 0.0, "2"),
        ("none", 0.0, "NoneType"),
        ("word", 0.0, "str"),
        ("anything", 0.0, "RuntimeError"),
        ("hang", 0.0, "did not end within 1 s"),
        ("spin", 0.0, "within 1 s"),
        ("power", 0.0, "within 1 s"),
        ("memory", 0.0, "MemoryError"),
    ],
)
def test_verifiers_in_processes_are_total(deed, value, reason):
    if deed in ("spin", "power") and sys.platform != "linux":
        pytest.skip("memory is bounded on Linux")
    start = time.monotonic()
    found = outcome(hostile.Hostile, deed)
    assert found.rewards == {"reward": value, "judged": value}
    assert reason in found.reasons["judged"] or (deed == "spin" and "MemoryError" in found.reasons["judged"])
    assert found.reasons["reward"] == found.reasons["judged"] and len(found.reasons["judged"]) <= 500
    assert time.monotonic() - start < 60
    assert outcome(hostile.Hostile, "answer").reward == 1.0  # the next one is judged as ever


@pytest.mark.parametrize(
    ("kind", "deed", "failure"),
    [
        ("Hostile", "leave", "verifier"),
        ("Hostile", "crash", "verifier"),
        ("Hostile", "sandbox", "sandbox"),
        ("HostileHere", "sandbox", "sandbox"),
        ("HostileHere", "worker", "worker"),
    ],
)
def test_an_infrastructure_that_breaks_is_a_failure_and_no_reward_of_0(kind, deed, failure):
    found = outcome(getattr(hostile, kind), deed)
    assert found.failure is not None and found.failure.kind == failure and found.failure.reason
    assert not found.rewards and not found.reasons
    with pytest.raises(ArcforgeError, match=f"no reward .{failure}: "):
        found.reward  # noqa: B018
    assert outcome(hostile.Hostile, "answer").reward == 1.0  # the next one is judged as ever


def test_a_verifiers_process_that_dies_once_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTILE_ONCE", str(tmp_path / "died"))
    killable.verifiers().close()  # processes have the environment of when they were started
    for _ in range(killable.PROCESSES):
        killable.verifiers()._idle.put(None)
    assert outcome(hostile.Hostile, "leave once").reward == 1.0


@pytest.mark.parametrize("deed", ["raise", "exit", "nan", "infinite", "negative", "two", "none", "word", "anything"])
def test_verifiers_here_are_total(deed):
    found = outcome(hostile.HostileHere, deed)
    assert found.reward == 0.0 and found.reasons["judged"] not in ("", "wrong")


def test_a_broken_verifier_takes_nothing_from_the_others():
    assert outcome(hostile.Several, "answer", "12345").rewards == {
        "reward": 1.0, "good": 1.0, "other": 1.0, "length": 0.5
    }  # fmt: skip
    found = outcome(hostile.Several, "raise")
    assert found.rewards == {"reward": 0.75, "good": 1.0, "other": 0.0, "length": 0.1}
    assert found.reasons["reward"].startswith("other: the verifier raised ZeroDivisionError")


def test_a_hanging_verifier_holds_up_no_other():
    async def both():
        slow, fast = (hostile.Hostile(hostile.HostileConfig(deed=deed)) for deed in ("hang", "answer"))
        await play(fast, fast.task(0), SILENCE)  # its process is there
        waiting = asyncio.create_task(play(slow, slow.task(0), SILENCE))
        await asyncio.sleep(0)
        found = await play(fast, fast.task(0), SILENCE)
        return found[1].reward, waiting.done(), (await waiting)[1].reward

    for _ in range(3):  # on a busy machine the quick one may be late: one of three is enough
        found = asyncio.run(both())
        if not found[1]:
            break
    assert found == (1.0, False, 0.0)


def test_processes_of_a_dead_caller_end(monkeypatch):
    """Their own alarm ends them where nobody is left to kill them."""
    monkeypatch.setattr(killable._Process, "_watch", lambda self, done, seconds: None)
    monkeypatch.setattr(killable, "PATIENCE", 1)
    found = outcome(hostile.Hostile, "hang")
    assert found.failure is not None and "process ended" in found.failure.reason


@pytest.mark.skipif(sys.platform != "linux", reason="proc(5)")
def test_a_process_that_is_not_let_run_has_more_time():
    environment = hostile.Hostile(hostile.HostileConfig(deed="stopped"))
    found = asyncio.run(play(environment, environment.task(0), SILENCE))[1]
    assert found.reward == 1.0, found


class Local(hostile.Asked):
    @reward(timeout=0.2)
    async def slow(self, task, episode):
        await asyncio.sleep(3600)

    @reward(timeout=60.0)
    async def quick(self, task, episode):
        await asyncio.sleep(0)
        return Score(1.0, "well")


def test_awaited_verifiers_are_cancelled():
    environment = Local(hostile.HostileConfig())
    found = asyncio.run(play(environment, environment.task(0), SILENCE))[1]
    assert found.failure == Failure("verifier", "slow did not end within 0.2 s")


class Unreachable(Local):
    @reward(timeout=None)
    async def slow(self, task, episode):
        raise ConnectionRefusedError("no judge")


class Measured(hostile.Asked):
    @reward(timeout=None)
    def right(self, task, episode):
        return 1.0

    @metric(timeout=None)
    def tokens(self, task, episode):
        return float(episode.reply.text)

    @metric(timeout=0.2)
    async def slow(self, task, episode):
        await asyncio.sleep(3600)


class MeasuredElsewhere(Measured):
    @metric(timeout=5.0)
    def tokens(self, task, episode):
        return float(episode.reply.text)


def test_a_judge_that_cannot_be_reached_is_a_failure():
    found = asyncio.run(play(Unreachable(hostile.HostileConfig()), Task("a", "b", "c"), SILENCE))[1]
    assert found.failure == Failure("verifier", "slow: ConnectionRefusedError: no judge")


class Judged(hostile.Asked):
    """Its judge says the reply's words in turn; a word that is a name of `SAID` raises, or returns junk."""

    asked = 0

    @reward(timeout=None, scale=(0.0, 10.0))
    async def judge(self, task, episode):
        self.asked += 1
        word = episode.reply.text.split()[self.asked - 1]
        return SAID[word]() if word in SAID else float(word)


def raising(error):
    def raised():
        raise error

    return raised


REQUEST = httpx.Request("POST", "http://judge")
SAID = {
    "429": raising(httpx.HTTPStatusError("too many", request=REQUEST, response=httpx.Response(429, request=REQUEST))),
    "slow": raising(httpx.ReadTimeout("late", request=REQUEST)),
    "half": raising(http.client.IncompleteRead(b"{")),
    "refused": raising(urllib.error.URLError("refused")),
    "timeout": raising(TimeoutError()),
    "prose": raising(NoVerdict("what a fine story")),
    "nothing": lambda: None,
    "bug": raising(KeyError("verdict")),
}


@pytest.mark.parametrize("said", ["429", "slow", "half", "refused", "timeout", "prose", "nothing", "11", "-1", "nan"])
def test_a_judge_without_a_verdict_is_asked_once_more_and_then_a_failure(said):
    environment = Judged(hostile.HostileConfig())
    found = asyncio.run(play(environment, Task("a", "b", "c"), [Reply(f"{said} 5")]))[1]
    assert found.failure is None and found.reward == 0.5 and environment.asked == 2
    environment.asked = 0
    found = asyncio.run(play(environment, Task("a", "b", "c"), [Reply(f"{said} {said} 5")]))[1]
    assert found.failure is not None and found.failure.kind == "verifier" and not found.rewards
    assert environment.asked == 2


def test_a_bug_of_a_judge_scores_0():
    found = asyncio.run(play(Judged(hostile.HostileConfig()), Task("a", "b", "c"), [Reply("bug")]))[1]
    assert found.reward == 0.0 and "KeyError" in found.reasons["judge"]


class JudgedElsewhere(hostile.Asked):
    @reward(timeout=20.0, scale=(-1.0, 3.0))
    def judge(self, task, episode):
        if episode.reply.text == "gone":
            raise ConnectionResetError("by peer")
        return float(episode.reply.text)


@pytest.mark.parametrize(
    ("said", "used", "raw"), [("1", 0.5, 1.0), ("-1", 0.0, -1.0), ("3", 1.0, 3.0), ("3.5", 0.0, None)]
)
def test_rewards_have_a_scale_of_their_own_and_keep_the_raw_value(said, used, raw):
    found = asyncio.run(play(JudgedElsewhere(hostile.HostileConfig()), Task("a", "b", "c"), [Reply(said)]))[1]
    assert found.rewards == {"reward": used, "judge": used}
    assert found.raw == ({} if raw is None else {"judge": raw})


def test_a_connection_that_breaks_in_another_process_is_no_verdict():
    environment = JudgedElsewhere(hostile.HostileConfig())
    found = asyncio.run(play(environment, Task("a", "b", "c"), [Reply("gone")]))[1]
    assert found.failure == Failure("verifier", "ConnectionResetError: by peer")


class Boundless(hostile.Asked):
    @reward(timeout=None, scale=None)
    async def logit(self, task, episode):
        return float(episode.reply.text[-3:])


@pytest.mark.parametrize("said", ["-12", "1e3", "x" * 300_000 + "-12"])
def test_a_reward_without_a_scale_is_any_finite_number(said):
    found = asyncio.run(play(Boundless(hostile.HostileConfig()), Task("a", "b", "c"), [Reply(said)]))[1]
    assert found.reward == float(said[-3:])


@pytest.mark.parametrize("said", ["nan", "inf", "???"])
def test_a_reward_without_a_scale_has_no_worst_value_to_fall_back_on(said):
    found = asyncio.run(play(Boundless(hostile.HostileConfig()), Task("a", "b", "c"), [Reply(said)]))[1]
    assert found.failure is not None and found.failure.kind == "verifier"


@pytest.mark.parametrize("scale", [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_bad_scales_are_named(scale):
    with pytest.raises(ConfigError, match=r"reward\.scale"):
        reward(scale=scale)


def test_a_plain_method_needs_a_scale():
    with pytest.raises(ConfigError, match=r"reward\.scale=None: judged must be async"):

        @reward(scale=None)
        def judged(self, task, episode):
            return 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="proc(5)")
def test_a_process_that_never_gets_its_time_is_a_failure(monkeypatch):
    """The machine was busy, whatever was judged."""
    monkeypatch.setattr(killable, "_used", lambda pid: ("R", 0.0))
    monkeypatch.setattr(killable, "PATIENCE", 1)
    found = outcome(hostile.Hostile, "hang")
    assert found.failure is not None and "busy machine" in found.failure.reason


@pytest.mark.parametrize("kind", [Measured, MeasuredElsewhere])
@pytest.mark.parametrize(("said", "measured"), [("4432.12", 4432.12), ("-3", -3.0), ("inf", 0.0), ("nan", 0.0)])
def test_a_metric_is_any_finite_number_and_one_that_fails_is_left_out(kind, said, measured):
    found = asyncio.run(play(kind(hostile.HostileConfig()), Task("a", "b", "c"), [Reply(said)]))[1]
    assert found.rewards == {"reward": 1.0, "right": 1.0, "tokens": measured}
    assert ("not finite" in found.reasons["tokens"]) == (said in ("inf", "nan"))


def test_a_class_that_no_other_process_can_make_is_refused():
    class Inside(hostile.Asked):
        @reward()
        def judged(self, task, episode):
            return 1.0

    environment = Inside(hostile.HostileConfig())
    with pytest.raises(ConfigError, match="top of a module"):
        asyncio.run(play(environment, Task("a", "b", "c"), SILENCE))


def test_what_is_longer_than_can_be_looked_at_scores_nothing():
    found = outcome(hostile.Hostile, "answer", "x" * 300_000)
    assert found.reward == 0.0
    assert found.reasons["reward"] == "the policy wrote 300,000 characters; more than 200,000 are not judged"


def test_tool_results_do_not_count_against_the_bound_on_what_is_judged():
    long, reply = Message("tool", "x" * 300_000, tool_call_id="1"), Reply("!")
    environment = hostile.Hostile(hostile.HostileConfig())
    episode = Episode((Message("user", "?"), Message("assistant", "look"), long, reply.message), reply)
    assert asyncio.run(environment.score(environment.task(0), episode)).reward == 1.0
    wordy = Episode((*[Message("assistant", "x" * 150_000)] * 2, reply.message), reply)
    assert asyncio.run(environment.score(environment.task(0), wordy)).reward == 0.0


def test_rewards_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="both have this name"):

        class Named(hostile.Asked):
            @reward(name="right")
            def first(self, task, episode):
                return 1.0

            @metric(name="right")
            def second(self, task, episode):
                return 0.0

    with pytest.raises(ConfigError, match="weighted mean"):

        class Total(hostile.Asked):
            @reward()
            def reward(self, task, episode):
                return 1.0


class Left(hostile.Asked):
    @reward(timeout=None)
    def judged(self, task, episode):
        return 0.0


class Right(hostile.Asked):
    @reward(timeout=None)
    def judged(self, task, episode):
        return 1.0


def test_parents_whose_rewards_collide_are_refused():
    with pytest.raises(ConfigError, match="Left and Right both define it"):

        class Both(Left, Right):
            pass

    with pytest.raises(ConfigError, match="without @reward"):

        class Undone(Left):
            def judged(self, task, episode):
                return 1.0

    class Chosen(Left, Right):
        @reward(timeout=None)
        def judged(self, task, episode):
            return Right.judged(self, task, episode)

    environment = Chosen(hostile.HostileConfig())
    assert asyncio.run(play(environment, Task("a", "b", "c"), SILENCE))[1].reward == 1.0


def test_an_environment_without_rewards_is_refused():
    class Nothing(hostile.Asked):
        @metric()
        def length(self, task, episode):
            return 1.0

    with pytest.raises(ConfigError, match="@reward"):
        Nothing(hostile.HostileConfig())


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_bad_weights_are_named(weight):
    with pytest.raises(ConfigError, match=r"reward\.weight"):
        reward(weight)


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf])
def test_bad_timeouts_are_named(timeout):
    with pytest.raises(ConfigError, match=r"reward\.timeout"):
        metric(timeout=timeout)


def test_agents_are_found_by_name():
    solver, judge = ScriptedAgent([]), ScriptedAgent([])
    agents = Agents(solver, judge=judge)
    assert agents.solver is solver and agents.judge is judge
    with pytest.raises(ConfigError, match="the agents of this rollout are solver, judge"):
        agents.critic  # noqa: B018


def test_scores():
    assert as_score(Score(0.5)) == Score(0.5, "scored 0.5")
    assert as_score(0) == Score(0.0, "wrong")
    assert as_score(Score(math.nan, "fine")).reason != "fine"


def test_one_question_and_one_reply_make_an_episode():
    environment = Left(hostile.HostileConfig())
    reply = Reply("so", "because", finish_reason="length")
    episode = asyncio.run(environment.run(Task("a", "b", "c"), Agents(ScriptedAgent([reply]))))
    assert episode == Episode((Message("user", "b"), Message("assistant", "so", "because")), reply, "length")


@pytest.mark.slow(reason="two scripts, each with a process of its own")
def test_a_module_that_plays_when_it_is_imported_is_refused(tmp_path):
    script = tmp_path / "playing.py"
    script.write_text(PLAYING)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert "ConfigError" in done.stderr and "plays when it is imported" in done.stderr, done.stderr
    script.write_text(PLAYING.replace("print(", "if __name__ == '__main__':\n    print("))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "1.0\n", done.stderr


PLAYING = """
from __future__ import annotations
import asyncio
from dataclasses import dataclass
from arcforge_core.config.schema import EnvironmentConfig
from arcforge_core.contracts.environment import Task
from arcforge_core.episodes.base import EnvironmentBase
from arcforge_core.episodes.rewards import reward
from arcforge_core.episodes.scripted import SILENCE, play

@dataclass
class MineConfig(EnvironmentConfig):
    name: str = "mine"

class Mine(EnvironmentBase):
    def task(self, index):
        return Task("a", "b", "c")

    @reward()
    def judged(self, task, episode):
        return 1.0

print(asyncio.run(play(Mine(MineConfig()), Task("a", "b", "c"), SILENCE))[1].reward)
"""

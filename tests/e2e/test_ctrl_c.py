"""Ctrl-C in every phase of a real command: answered within two seconds, and what was saved by then can be resumed.

Seconds are those that the process sleeps or computes, so that other programs on the machine do not count.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from arcforge_core.files.find import NAMED

HEARD = 2.0
"""Seconds to the first line that answers."""
ENDED = 4.0
"""Seconds to the end of a command with nothing to save; the interpreter takes part of them to leave."""
DRIVER = """
import importlib, sys
sys.argv[0] = {name!r}
for place in {places!r}:
    module, _, names = place.partition(":")
    *path, name = names.split(".")
    owner = importlib.import_module(module)
    for each in path:
        owner = getattr(owner, each)
    def announced(*args, _real=getattr(owner, name), _count=[0], **kwargs):
        _count[0] += 1
        if _count[0] == {time}:
            print("the phase begins", file=sys.stderr, flush=True)
        return _real(*args, **kwargs)
    setattr(owner, name, announced)
from arcforge_core.cli.main import main
sys.exit(main())
"""
NATIVE = "hardware=torch_cpu"
"""Compiles no kernels, which takes a minute in the fresh cache of a case."""
RL = (
    "arcforge-rl", "init=demo", "environment=math", "environment.kinds=[arithmetic]", "rollout.max_new_tokens=12",
    "trainer.max_steps=2", "trainer.checkpoint_every=1", "trainer.eval_every=2", "evaluation.tasks=32",
    "rollout.groups=4", "name=cut", NATIVE,
)  # fmt: skip
TRAIN = ("arcforge-train", "experiment=smoke", "trainer.checkpoint_every=1", "name=cut", NATIVE)
PIPELINE = ("arcforge-pipeline", "pipeline=long_context_small")
ENV = ("arcforge-env", "checkpoint=demo", "environment=arithmetic", "episodes=256", "rollouts=4", "max_new_tokens=64")
SAMPLE = ("arcforge-sample", "checkpoint=demo", "environment=arithmetic", "tasks=256", "max_new_tokens=64", NATIVE)
EVAL = ("arcforge-eval", "checkpoint=demo", "suite.max_tokens=20000", "suite.functions=64", NATIVE)
SERVE = ("arcforge-serve", "checkpoint=demo", "port=0")
LISTENS = "Ctrl-C stops"
"""The end of a server's start: it uses no more processor time."""
ENDS, FINISHES, CUTS = "interrupted", "stopping after this step", "stopping"
"""How a command answers: it ends; it ends after its step, or at a second Ctrl-C; it leaves an evaluation out."""


@dataclass(frozen=True)
class Case:
    """A phase: the function that begins it and its how-manieth call, how the command answers, whether a run is kept."""

    command: tuple[str, ...]
    phase: str
    place: str
    answer: str
    time: int = 1
    kept: bool = False


CASES = [
    Case(RL, "building", "arcforge_rl.trainer.run:build", ENDS),
    Case(RL, "evaluation before", "arcforge_rl.rollouts.sampler:Sampler.evaluate", "stopping before the first step"),
    Case(RL, "sampling", "arcforge_rl.rollouts.sampler:Sampler.take", FINISHES, kept=True),
    Case(RL, "learning", "arcforge_rl.trainer.module:PolicyModule._update", FINISHES, kept=True),
    Case(RL, "checkpoint", "arcforge_core.train.callbacks.checkpointing:write_checkpoint", FINISHES, kept=True),
    Case(RL, "evaluation after", "arcforge_rl.rollouts.sampler:Sampler.evaluate", CUTS, time=2, kept=True),
    Case(RL, "report", "arcforge_rl.trainer.run:write_report", ENDS, kept=True),
    Case(TRAIN, "data", "arcforge_core.data.tokens.build:build_shards", ENDS),
    Case(TRAIN, "samples before", "arcforge_core.train.callbacks.samples:Samples.write", "stopping before"),
    Case(TRAIN, "step", "arcforge_core.train.module:TrainingModule.scheduled_optimizer", FINISHES, kept=True),
    Case(TRAIN, "checkpoint", "arcforge_core.train.callbacks.checkpointing:write_checkpoint", FINISHES, kept=True),
    Case(TRAIN, "report", "arcforge_core.train.run:write_report", ENDS, kept=True),
    Case(PIPELINE, "checks", "arcforge_core.pipeline.run:check_stages", ENDS),
    Case(PIPELINE, "data of a stage", "arcforge_core.data.tokens.build:build_shards", ENDS),
    Case(ENV, "playing", "arcforge_core.episodes.rollout:play", ENDS),
    Case(SAMPLE, "loading", "arcforge_rl.best_of.command:load_with_tokenizer", ENDS),
    Case(SAMPLE, "trying", "arcforge_core.episodes.rollout:play", ENDS),
    Case(EVAL, "loading", "arcforge_core.eval.run:load_pretrained", ENDS),
    Case(EVAL, "data", "arcforge_core.data.tokens.build:build_shards", ENDS),
    Case(EVAL, "held-out text", "arcforge_core.eval.run:bits_per_byte", ENDS),
    Case(EVAL, "compressors", "arcforge_core.eval.run:compression_baselines", ENDS),
    Case(EVAL, "functions", "arcforge_core.eval.run:sample_functions", ENDS),
]


@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="each case is a real command, which imports torch")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.command[0]} {case.phase}")
def test_every_phase_answers_ctrl_c(case, tmp_path):
    driver = DRIVER.format(name=case.command[0], places=[case.place], time=case.time)
    with Command([sys.executable, "-c", driver, *case.command[1:]], case.command[0], tmp_path) as command:
        command.wait_until("the phase begins")
        time.sleep(0.2)
        said = len(command.said)
        heard = command.interrupt(until=lambda: case.answer in command.said[said:] or command.has_ended())
        assert case.answer in command.said[said:] and heard <= HEARD, (heard, command.said[said:])
        if case.answer == FINISHES:
            ended = command.interrupt()
        else:
            ended = command.seconds_until(command.has_ended)
    print(f"{case.command[0]}, {case.phase}: heard after {heard:.2f} s, ended after {ended:.2f} s")
    assert ended <= ENDED, (ended, command.said)
    saved = (0,) if case.answer == CUTS else ()
    assert "Traceback" not in command.said and command.code in (130, *saved), command.said
    named = [tmp_path / place / "cut" for place in NAMED]
    assert any(link.exists() for link in named) == case.kept or case.answer == FINISHES


@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="each moment is a real command")
@pytest.mark.parametrize("moment", [0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("given", [RL, TRAIN, SERVE, SAMPLE, EVAL], ids=lambda given: given[0])
def test_the_first_seconds_answer_ctrl_c(given, moment, tmp_path):
    """Moments in processor seconds: imports, and what a command does before its first line."""
    name = given[0]
    with Command([Path(sys.executable).parent / name, *given[1:]], name, tmp_path) as command:
        command.wait_until(moment)
        said = len(command.said)
        heard = command.interrupt(until=lambda: len(command.said) > said or command.has_ended())
        ended = command.seconds_until(command.has_ended)
    print(f"{name} at {moment} s: heard after {heard:.2f} s, ended after {ended:.2f} s")
    assert heard <= HEARD and ended <= ENDED, (heard, ended, command.said)
    assert "Traceback" not in command.said and command.code in (130, 0), command.said


class Command:
    """A command in a session of its own, whose output is read while it runs."""

    def __init__(self, words, name, folder):
        self.name, self.folder, self.file = name, folder, folder / "said.txt"
        self.words = [*map(str, words)]

    def __enter__(self):
        environment = {**os.environ, "ARCFORGE_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}
        self.file.touch()
        with self.file.open("w") as file:
            self.process = subprocess.Popen(
                self.words, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *error):
        if not self.has_ended():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.code = self.process.wait()

    @property
    def said(self):
        return self.file.read_text()

    def has_ended(self):
        return self.process.poll() is not None

    def wait_until(self, what):
        """Returns when the command has said a text, or has used a number of processor seconds or listens idly."""
        while not (what in self.said if isinstance(what, str) else sum(self._used()) >= what or LISTENS in self.said):
            assert not self.has_ended(), self.said
            time.sleep(0.02)

    def interrupt(self, until=None):
        """Presses Ctrl-C; returns the seconds until it ends, or until a condition holds."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.seconds_until(until or self.has_ended)

    def seconds_until(self, condition):
        """Returns the seconds that the main thread sleeps or computes until a condition holds."""
        began = last = time.monotonic()
        asleep, (before, _) = 0.0, self._used()
        used = before
        while not condition():
            assert last - began < 600, f"deaf for 600 s\n{self.said}"
            time.sleep(0.01)
            now = time.monotonic()
            asleep += (now - last) * (self._state() in "SD")
            last, used = now, max(used, self._used()[0])
        return asleep + used - before

    def _used(self):
        """Processor seconds of the main thread, and of the others."""
        main, every = self._stat(f"task/{self.process.pid}/stat"), self._stat("stat")
        own, total = (sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") for fields in (main, every))
        return own, total - own

    def _state(self):
        return self._stat(f"task/{self.process.pid}/stat")[0]

    def _stat(self, name):
        try:
            return Path(f"/proc/{self.process.pid}/{name}").read_text().rpartition(")")[2].split()
        except OSError:
            return ["Z"] + ["0"] * 20

"""Held-out tasks are played by the rollouts' engine, alone or not, or by an engine of their own."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.rl.orchestrator.test_source import ASYNC

from arcforge_core.errors import ConfigError
from arcforge_rl.orchestrator.source import AsynchronousSource
from arcforge_rl.rollouts import sampler as samplers
from arcforge_rl.rollouts.sampler import Sampler
from arcforge_rl.trainer.run import run

from .conftest import Compose
from .test_run import metrics

OPTIONS = (*ASYNC[:-1], "evaluation.tasks=6", "trainer.eval_every=1", "trainer.max_steps=2", "rollout.drop_equal=false")


def evaluations(folder: Path) -> list[str]:
    return [line for line in (folder / "evaluations.csv").read_text().splitlines() if ",all," in line]


class Watched:
    """Records the state of the source during evaluations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.playing: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self.source: AsynchronousSource | None = None
        begin, evaluate = AsynchronousSource.begin, Sampler.evaluate

        def begun(source: AsynchronousSource, *given: Any) -> None:
            self.source = source
            begin(source, *given)

        def evaluated(sampler: Sampler) -> Any:
            self.threads.add(threading.current_thread().name)
            assert self.source is not None
            before = len(self.source.collector._playing)
            found = evaluate(sampler)
            self.playing.append((before, len(self.source.collector._playing)))
            return found

        monkeypatch.setattr(AsynchronousSource, "begin", begun)
        monkeypatch.setattr(Sampler, "evaluate", evaluated)


@pytest.mark.slow(reason="three runs")
def test_each_value_has_its_effect_and_the_same_figures(
    small_run: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate is 0, so that the weights of each step, and with them all figures, are the same in each run."""
    found: dict[str, Watched] = {}
    tables = {}
    for value in ("shared", "pause", "own"):
        with monkeypatch.context() as patch:
            found[value] = Watched(patch)
            options = (*OPTIONS, f"evaluation.engine={value}", f"output_dir={tmp_path / value}", "optimizer.lr=0")
            ended = run(small_run(*options, "trainer.deterministic=true"))
        rows = [line.split(",") for line in evaluations(ended.dir)]
        assert [row[0] for row in rows] == ["0", "1", "2"], "each is pinned to its step"
        tables[value] = [[cell for n, cell in enumerate(row) if n != 1] for row in rows]
        assert len(metrics(ended.dir)) == 2
    assert tables["shared"] == tables["pause"] == tables["own"]
    assert found["pause"].playing == [(0, 0)] * 3 and max(before for before, _ in found["shared"].playing) > 0
    assert found["pause"].threads == found["shared"].threads == {"MainThread"}
    assert found["own"].threads == {"arcforge-evaluation_0"}


@pytest.mark.slow(reason="two runs")
def test_an_engine_of_its_own_has_the_weights_of_the_step(small_run: Compose, tmp_path: Path) -> None:
    """The next step is trained meanwhile; the figures are those of an evaluation between the steps."""
    options = ("trainer.eval_every=1", "optimizer.lr=0.03", "evaluation.tasks=12", "evaluation.temperature=0.5")
    tables = []
    for value in ("shared", "own"):
        ended = run(small_run(*options, f"evaluation.engine={value}", f"output_dir={tmp_path / value}"))
        rows = [line.split(",") for line in evaluations(ended.dir)]
        tables.append([[cell for n, cell in enumerate(row) if n != 1] for row in rows])
    assert tables[0] == tables[1] and len(tables[0]) == 4
    assert len({tuple(row[1:]) for row in tables[0]}) > 1, "training changed the figures"


def test_permits_bound_the_tries_at_a_time(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    roll_out = samplers.roll_out_groups

    def rolled(*given: Any, **named: Any) -> Any:
        sizes.append(len(given[0].tasks) * given[0].size)
        return roll_out(*given, **named)

    build = Sampler.__init__

    def built(sampler: Sampler, *given: Any, **named: Any) -> None:
        build(sampler, *given, **named)
        sampler.roll_out = rolled

    monkeypatch.setattr(Sampler, "__init__", built)
    options = ("trainer.max_steps=1", "evaluation.tasks=5", "evaluation.samples=2", "rollout.groups=1")
    run(small_run(*options, "rollout.group_size=3", "rollout.drop_equal=false", "evaluation.concurrency=4"))
    assert sizes == [4, 4, 2, 3, 4, 4, 2], "before training, one step, after it"


def test_held_out_tasks_may_be_of_another_environment(small_run: Compose) -> None:
    """Those of skills that the run does not train: here it trains copying and is evaluated on science, too."""
    parts = "+evaluation.options.parts={copy: 1, science: 1}"
    options = ("evaluation.environment=mixture", parts, "trainer.max_steps=1", "rollout.drop_equal=false")
    ended = run(small_run(*options, "evaluation.tasks=4"))
    domains = {line.split(",")[2] for line in (ended.dir / "evaluations.csv").read_text().splitlines()[1:]}
    assert domains == {"all", "copy", "science"}
    assert {"pass@1_science_before", "pass@1_science_after"} <= ended.figures.keys()


def test_an_option_of_the_held_out_tasks_is_known(small_run: Compose) -> None:
    config = small_run("evaluation.environment=arithmetic", "+evaluation.options.digit=3")
    with pytest.raises(ConfigError, match=r"evaluation\.options='digit': arithmetic takes .*digits"):
        run(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("+evaluation.options.digits=3",), r"evaluation\.options=.*are of evaluation\.environment: name one"),
        (("evaluation.engine=mine",), r"evaluation\.engine='mine': must be one of shared, pause, own"),
        (("evaluation.engine=pause",), r"evaluation\.engine='pause': needs collection=async"),
        (("evaluation.concurrency=0",), r"evaluation\.concurrency=0"),
        (
            ("evaluation.engine=own", "engine=arcforge", "engine.url=http://127.0.0.1:1"),
            r"evaluation\.engine='own': needs an engine in this process",
        ),
    ],
)
def test_what_cannot_be_is_one_line(small_run: Compose, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_run(*options)

"""Warnings come when a figure leaves its bounds, once, and every option moves one of the bounds."""

import csv
from pathlib import Path

import pytest
from tests.rl.trainer.conftest import Compose

from arcforge_core.errors import ConfigError
from arcforge_rl.configs.learning import MonitorConfig
from arcforge_rl.trainer.monitor import Monitor
from arcforge_rl.trainer.run import run


def told(config: MonitorConfig, *steps: dict[str, float], most_gap: float = 1e-4) -> list[tuple[int, str]]:
    monitor = Monitor(config, most_gap)
    return [(w.step, w.figure) for step, figures in enumerate(steps, 1) for w in monitor.add(step, figures)]


def entropies(*values: float) -> list[dict[str, float]]:
    return [{"entropy": value} for value in values]


def test_entropy_that_falls_below_a_share_of_its_beginning() -> None:
    steps = entropies(1.0, 0.6, 0.4, 0.3, 0.9, 0.4)
    assert told(MonitorConfig(window=1, entropy_low=0.5), *steps) == [(3, "entropy"), (6, "entropy")], "once each time"
    assert told(MonitorConfig(window=1, entropy_low=0.2), *steps) == []
    message = Monitor(MonitorConfig(window=1, entropy_low=0.5), 1.0)
    message.add(1, steps[0])
    (warning,) = message.add(2, {"entropy": 0.4})
    assert warning.limit == 0.5 and warning.value == 0.4
    assert warning.message.startswith("entropy 0.4 nats, below 0.5 x what it began with (1)")


def test_entropy_that_rises_above_a_multiple_of_its_beginning() -> None:
    steps = entropies(1.0, 2.0, 4.0)
    assert told(MonitorConfig(window=1, entropy_high=3.0), *steps) == [(3, "entropy")]
    assert told(MonitorConfig(window=1, entropy_high=1.5), *steps) == [(2, "entropy")]
    assert told(MonitorConfig(window=1, entropy_high=9.0), *steps) == []


def test_means_over_the_window_count() -> None:
    steps = entropies(1.0, 1.0, 0.0, 1.0, 0.0, 0.0)
    assert told(MonitorConfig(window=1, entropy_low=0.4), *steps) == [(3, "entropy"), (5, "entropy")]
    assert told(MonitorConfig(window=2, entropy_low=0.4), *steps) == [(6, "entropy")]
    assert told(MonitorConfig(window=7, entropy_low=0.4), *steps) == [], "it has not begun yet"


def test_masked_tokens_and_the_gap() -> None:
    masked = [{"masked_low": 0.02, "masked_high": 0.04}]
    assert told(MonitorConfig(window=1, masked=0.05), *masked) == [(1, "masked")]
    assert told(MonitorConfig(window=1, masked=0.07), *masked) == []
    gap = [{"logprob_gap": 6e-5}]
    assert told(MonitorConfig(window=1, gap=0.5), *gap) == [(1, "logprob_gap")]
    assert told(MonitorConfig(window=1, gap=0.7), *gap) == []
    assert told(MonitorConfig(window=1, gap=0.5), *gap, most_gap=0.05) == []


def test_steps_that_teach_nothing_say_nothing() -> None:
    assert told(MonitorConfig(window=1, entropy_low=0.5), {"entropy": 1.0}, {}, {"entropy": float("nan")}) == []


@pytest.mark.parametrize(
    "wrong", [{"window": 0}, {"entropy_low": 1.5}, {"entropy_high": 0.5}, {"masked": -0.1}, {"gap": float("nan")}]
)
def test_bounds_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"monitor.{name}"):
        MonitorConfig(**wrong)  # type: ignore[arg-type]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "warnings.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.nightly(reason="two runs")
def test_a_run_warns_and_a_resumed_one_goes_by_the_same_beginning(
    small_run: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("monitor.window=1", "monitor.entropy_low=1.0", "trainer.checkpoint_every=1", "optimizer.lr=0.02")
    whole = run(small_run(*options, "trainer.max_steps=5", "name=whole"))
    assert rows(whole.dir) and "warning: step" in capsys.readouterr().out
    run(small_run(*options, "trainer.max_steps=1", "name=cut"))
    rest = run(small_run(*options, "trainer.max_steps=5", "name=cut", "resume=latest"))
    assert rows(rest.dir) == rows(whole.dir)

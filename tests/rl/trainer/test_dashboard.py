"""The live view and what TensorBoard gets: of a real run, and of words that are out to harm."""

import csv
import io
import itertools

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.rl.trainer.conftest import Compose

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.contracts.environment import Episode, NoVerdict, Outcome, Reply, Task
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.train import session
from arcforge_rl.rollouts.clock import PHASES
from arcforge_rl.rollouts.collect import TracedRollout
from arcforge_rl.trainer import dashboard, tensorboard
from arcforge_rl.trainer.dashboard import Dashboard, harmless, sparkline
from arcforge_rl.trainer.run import run

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e[red]</pre>\n# heading"


def evil_rollout() -> TracedRollout:
    task, branch = Task("key", EVIL, EVIL), Branch("0", [1, 2], [False, True], [0.0, -0.5], [-1, 0])
    outcome = Outcome({"reward": 0.5}, {"reward": EVIL})
    trace = Trace("key", "g", "r", [branch], outcome.rewards)
    return TracedRollout(0, task, "d", Episode((), Reply(EVIL)), outcome, trace=trace)


def test_sparklines() -> None:
    assert sparkline([]) == "" and sparkline([3.0]) == "▁" and sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" or sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert len(sparkline(list(range(100)))) == dashboard.WIDTH


def test_nothing_that_a_model_says_reaches_the_terminal_as_a_command() -> None:
    assert harmless(EVIL) == "�]0;owned��[2J�[red]</pre>\n# heading"
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=100, markup=False, color_system=None).print(
        dashboard._sample(evil_rollout())
    )
    assert "\x1b" not in out.getvalue() and "[red]" in out.getvalue() and "reward 0.50" in out.getvalue()


def test_words_for_tensorboard_are_no_markup() -> None:
    text = tensorboard.as_text([evil_rollout()])
    assert all(line.startswith("    ") for line in text.splitlines() if "heading" in line or "red" in line)
    assert "reward 0.50" in text


def test_a_run_on_a_terminal_has_a_live_view(small_run: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=120, height=50, color_system=None, legacy_windows=False)
    monkeypatch.setattr(session, "Console", lambda **options: Console(quiet=True) if options.get("quiet") else terminal)
    views: list[dict[str, str]] = []
    render = Dashboard.render

    def watched(view: Dashboard) -> object:
        views.append(dict(view.lines()))
        return render(view)

    monkeypatch.setattr(Dashboard, "render", watched)
    found = run(small_run("trainer.max_steps=3", "trainer.eval_every=1", "monitor.gap=0.0", "monitor.window=1"))
    assert len(views) == 4 and list(views[0]) == ["held-out pass@1"]
    last = views[-1]
    assert {"reward", "held-out pass@1", "entropy", "log-prob gap", "masked", "length", "groups", "idle", "speed",
            "time", "warnings"} == set(last)  # fmt: skip
    assert all(phase in last["time"] for phase in PHASES) and "tokens/s" in last["speed"]
    assert last["held-out pass@1"].count("%") == 4 and last["warnings"] == "1"
    with (found.dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    spent = [[float(row[f"seconds_{phase}"]) for phase in PHASES] for row in rows]
    assert all(min(of_step) > 0 for of_step in spent) and sum(map(sum, spent)) <= float(rows[-1]["seconds"]) + 0.01
    shown = out.getvalue()
    assert "sample" in shown and "it begins with" in shown and "step 3" in shown and "warning: step 1" in shown
    assert "held-out copy at step" not in shown, "no plain lines beside it"

    events = EventAccumulator(str(found.dir / "tensorboard"), size_guidance={"tensors": 0, "histograms": 0})
    events.Reload()
    assert [event.step for event in events.Tensors("heldout/first_task/text_summary")] == [0, 1, 2, 3]
    assert {"tokens/logprob", "tokens/advantages", "tokens/factor", "rollouts/length", "rollouts/reward"} == set(
        events.Tags()["histograms"]
    )
    assert {"seconds_sampling", "entropy", "heldout_pass@1"} <= set(events.Tags()["scalars"])


def test_a_step_whose_every_rollout_failed_leaves_the_last_sample_on_screen(
    small_run: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, height=50, legacy_windows=False)
    monkeypatch.setattr(session, "Console", lambda **options: Console(quiet=True) if options.get("quiet") else terminal)
    samples: list[TracedRollout | None] = []
    numbers, score, render = itertools.count(), CopyEnvironment.score, Dashboard.render

    async def absent(environment: CopyEnvironment, task: Task, episode: Episode) -> Outcome:
        if 16 <= next(numbers) < 32:
            raise NoVerdict("the judge is away")
        return await score(environment, task, episode)

    def watched(view: Dashboard) -> object:
        samples.append(view.sample)
        return render(view)

    monkeypatch.setattr(CopyEnvironment, "score", absent)
    monkeypatch.setattr(Dashboard, "render", watched)
    run(small_run("rollout.drop_equal=false", "evaluation.tasks=0"))
    _, first, during, after = samples
    assert first is during is not None and after is not first


def test_without_a_terminal_there_are_lines(small_run: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    run(small_run("trainer.max_steps=2"))
    lines = capsys.readouterr().out.splitlines()
    assert any("step 2  reward" in line for line in lines) and any("held-out copy at step 0" in line for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_a_run_that_samples_while_it_trains_shows_staleness_and_idle_shares() -> None:
    class Callback:
        count, last, last_step = 0, None, -1

    view = Dashboard(Console(file=io.StringIO()), Callback(), Callback())  # type: ignore[arg-type]
    view.figures = dict.fromkeys(("length", "truncated", "groups", "all_right", "all_wrong", "all_equal"), 1.0) | {
        **dict.fromkeys(("nothing_sampled", "sampled_tokens", *(f"seconds_{phase}" for phase in PHASES)), 1.0),
        **{"staleness_take_mean": 1.75, "staleness_take_max": 4.0, "trainer_idle": 0.25, "engine_idle": 0.5},
        **{"rollout_p50": 1.0, "rollout_p99": 9.0, "trained_per_sampled": 0.8, "prefix_hits": 0.4},
        **{"dropped_stale": 2.0, "dropped_engine": 0.0, "logprob_drift": 0.01},
    }
    lines = dict(view.lines())
    assert lines["staleness"] == "1.75 mean, 4 most; drift 1.0e-02 nats a token"
    assert lines["idle"] == "trainer 25%, engine 50%"
    assert lines["rollouts"] == "1.0 s median, 9.0 s p99; groups dropped: 2 stale"
    assert lines["trained"] == "80% of the sampled tokens; 40% of the prompts cached"
    for name in ("rollout_p50", "rollout_p99", "trained_per_sampled", "prefix_hits", "engine_idle"):
        del view.figures[name]  # a replayed batch, and an engine that is asked elsewhere
    lines = dict(view.lines())
    assert lines["rollouts"] == "none ended; groups dropped: 2 stale" and lines["idle"] == "trainer 25%"
    assert "trained" not in lines

"""A teacher's server is killed in the middle of a step, and comes back with the same weights or with others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from tests.e2e.test_judge_killed import free_port
from tests.rl.trainer.conftest import Compose, learnable, no_drawing, policy, small_run  # noqa: F401  # fixtures
from tests.rl.trainer.test_engine_server import KEY

from arcforge_core import load_pretrained
from arcforge_core.errors import ArcforgeError
from arcforge_rl.trainer.run import run
from support.mortal_server import mortal_server
from support.policies import save_policy
from support.rl_runs import metrics

STEPS, PROMPTS = 4, 8
MOST = 1 + 2 * (PROMPTS + 1) + 3
"""Requests before the end: the first fixed text, two steps with theirs, part of the third step."""


@contextmanager
def restarted(first: Path, then: Path, port: int) -> Iterator[list[int]]:
    """Serves a checkpoint until the server kills itself in the third step, then another one at the same port; yields
    the exit codes of the servers that ended meanwhile."""
    codes: list[int] = []
    with ExitStack() as servers:
        begun = servers.enter_context(mortal_server(first, port, KEY, MOST))

        def follow() -> None:
            codes.append(begun.wait())
            servers.enter_context(mortal_server(then, port, KEY))

        watcher = threading.Thread(target=follow)
        watcher.start()
        try:
            yield codes
        finally:
            begun.kill()
            watcher.join()


def check_same(found: Path, wanted: Path, steps: int) -> None:
    """Checks that a run has this many steps, with the figures and the last saved weights of another one."""
    rows = metrics(found)
    assert len(rows) == steps
    for mine, theirs in zip(rows, metrics(wanted), strict=False):
        for name in ("teacher_copy_tokens", "teacher_copy_gap", "teacher_copy_loss", "policy_loss"):
            assert float(mine[name]) == pytest.approx(float(theirs[name]), abs=1e-4), (mine["step"], name)
    last = sorted((found / "checkpoints").glob("step-*"))[-1].name
    states = [load_pretrained(folder / "checkpoints" / last).state_dict() for folder in (found, wanted)]
    assert int(last.removeprefix("step-")) == steps
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="five server processes and three runs")
def test_a_run_outlives_its_teacher_and_learns_from_no_other_weights(
    small_run: Compose,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", KEY)
    teacher, other = (save_policy(tmp_path / f"teacher{seed}", seed=seed) for seed in (1, 2))
    port = free_port()
    served = f"{{engine: arcforge, attempts: 10, options: {{url: 'http://127.0.0.1:{port}'}}}}"
    common = (
        *("algorithm=opd", f"+teachers.default={served}", f"rollout.groups={PROMPTS}", "rollout.group_size=1"),
        *("optimizer.lr=0.01", f"trainer.max_steps={STEPS}", "evaluation.tasks=0"),
        *("trainer.checkpoint_every=1", f"trainer.keep_checkpoints={STEPS}"),
    )
    with mortal_server(teacher, port, KEY):
        wanted = run(small_run(*common)).dir
    with restarted(teacher, teacher, port) as codes:
        found = run(small_run(*common, f"output_dir={tmp_path / 'same'}")).dir
        assert codes == [-signal.SIGKILL]
    assert "teachers.default: " in (said := capsys.readouterr().err) and "asked again" in said
    check_same(found, wanted, STEPS)
    with restarted(teacher, other, port) as codes:
        with pytest.raises(ArcforgeError, match=r"^teachers\.default: its weights changed .* moved by .* nats$"):
            run(small_run(*common, f"output_dir={tmp_path / 'other'}"))
        assert codes == [-signal.SIGKILL]
    (found,) = (tmp_path / "other").glob("*/*-rl")
    check_same(found, wanted, 2)

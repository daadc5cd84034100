"""Processes that torchrun restarts: they resume their own run."""

import os

import pytest

from arcforge_core.train import run as run_module
from arcforge_core.train.module import LanguageModelModule
from arcforge_core.train.resume import offer_resume
from arcforge_core.train.run import train
from support.runs import tiny_run


@pytest.fixture
def dying(monkeypatch):
    """Trains a run whose process dies before the step with this number; returns its folder."""
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e9)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    original = LanguageModelModule.training_step

    def train_until(tmp_path, number):
        def training_step(module, batch, batch_idx):
            if module.progress.step + 1 == number:
                raise SystemExit(9)
            original(module, batch, batch_idx)

        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(LanguageModelModule, "training_step", training_step)
            train(tiny_run(tmp_path))
        return max((tmp_path / "outputs").glob("*-*-*/*")).resolve()

    return train_until


def test_a_restarted_process_resumes_its_own_run_whatever_latest_is(tmp_path, dying, monkeypatch, capsys):
    own = dying(tmp_path, 4)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another launch")
    assert train(tiny_run(tmp_path, "trainer.max_steps=1")).dir != own
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    capsys.readouterr()
    config = tiny_run(tmp_path)
    offer_resume(config)
    assert train(config).dir == own
    printed = capsys.readouterr().out
    assert f"restarted by torchrun (restart 1): run {os.path.relpath(own)} resumes" in printed
    assert "starting fresh" not in printed
    rows = (own / "metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["1", "2", "4", "6"]


@pytest.mark.nightly(reason="a launch in a process of its own")
def test_without_a_checkpoint_it_begins_its_run_again(tmp_path, dying, monkeypatch, capsys):
    own = dying(tmp_path, 2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert train(tiny_run(tmp_path)).dir == own
    assert "begins again: it had no checkpoint yet" in capsys.readouterr().out


@pytest.mark.nightly(reason="a launch in a process of its own")
def test_a_new_launch_begins_a_new_run(tmp_path, dying, monkeypatch):
    own = dying(tmp_path, 4)
    assert train(tiny_run(tmp_path, "trainer.max_steps=1")).dir != own
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another launch")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(tiny_run(tmp_path, "trainer.max_steps=1")).dir != own

"""Phases of a run that take long are named on standard error: silence has a length that a test can shorten."""

import os
import signal

import pytest

from arcforge_core.console import progress
from arcforge_core.train.callbacks import samples
from arcforge_core.train.run import train
from support.runs import tiny_run


def test_every_phase_of_a_run_says_what_it_does(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.001)
    train(tiny_run(tmp_path, "trainer.max_steps=1", "trainer.samples=1"))
    printed = capsys.readouterr().err
    for phase in (
        "sampling texts before training",
        "sampling texts after training",
        "evaluating on held-out text",
        "writing the report",
    ):
        assert f"{phase} (" in printed


def test_ctrl_c_before_the_first_step_is_answered_and_ends_the_run_as_an_interrupt(tmp_path, monkeypatch, capfd):
    (writer,) = [each for each in vars(samples).values() if isinstance(each, type) and hasattr(each, "on_train_start")
                 and each.__module__ == samples.__name__]  # fmt: skip
    monkeypatch.setattr(writer, "on_train_start", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a command that ran here may have set its own
    with pytest.raises(KeyboardInterrupt):
        train(tiny_run(tmp_path, "trainer.max_steps=1", "trainer.samples=1"))
    assert "stopping before the first step" in capfd.readouterr().err
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler

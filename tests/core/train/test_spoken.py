"""Phases of a run that take long are named on standard error: silence has a length that a test can shorten."""

from arcforge_core.console import progress
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

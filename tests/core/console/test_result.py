from pathlib import Path

from arcforge_core.console.result import Result


def test_figures_are_shown_under_their_labels_and_rounded(capsys):
    Result(Path("run"), {"loss": 1.23456, "tokens": 1234567.0}).show("outputs/run", {"loss": "nats per token"})
    out = capsys.readouterr().out
    assert "outputs/run" in out
    rows = [line.replace("│", " ").split() for line in out.splitlines()]
    assert ["nats", "per", "token", "1.235"] in rows
    assert ["tokens", "1,234,567"] in rows

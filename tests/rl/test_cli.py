import sys
from pathlib import Path

import pytest

from arcforge_rl.cli import main


def test_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "agent=oracle", "episodes=2", f"output_dir={tmp_path}"])
    assert main() == 0
    assert list(tmp_path.glob("*/*-env/rollouts.jsonl"))
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "agent=orcale"])
    assert main() == 2
    assert "did you mean 'oracle'" in capsys.readouterr().err

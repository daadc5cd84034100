"""``arcforge-report`` writes each kind of run's own report."""

import sys
from pathlib import Path

import pytest

from arcforge_core.cli.report import main, report_of
from arcforge_core.errors import UnknownComponentError
from arcforge_core.plugins.registry import Registry
from arcforge_core.train.report import page as report


def test_the_report_is_the_one_of_the_runs_configuration(tmp_path: Path) -> None:
    pytest.importorskip("arcforge_rl")
    from arcforge_rl.trainer.report.page import write_report

    for config, writer in (
        ("data: {name: stdlib}", report.write_report),
        ("algorithm: {name: icepop}", write_report),
        ("name: {", report.write_report),
        ("", report.write_report),
    ):
        (tmp_path / "config.yaml").write_text(config)
        assert report_of(tmp_path) is writer


def test_a_run_of_a_package_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("algorithm: {name: icepop}")
    monkeypatch.setattr("arcforge_core.cli.report.registry", Registry)
    with pytest.raises(UnknownComponentError, match=r"pip install ./packages/rl"):
        report_of(tmp_path)


def test_the_command_names_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("arcforge_core.cli.report.report_of", lambda run: lambda folder: folder / "report.html")
    monkeypatch.setattr(sys, "argv", ["arcforge-report", str(tmp_path)])
    assert main() == 2 and "is not a run's folder" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text("")
    main()
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")

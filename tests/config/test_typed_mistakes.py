"""Mistakes that people type: one line, exit code 2, the field that was meant, and nothing loaded for it."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arcforge_core.cli.main import main

TABLE = Path(__file__).with_name("typed_mistakes.txt")
MISTAKES = [tuple(line.split("  ->  ")) for line in TABLE.read_text(encoding="utf-8").splitlines()]
TIMED = ["train --minutes=3", "serve outputs/latest", "train init=nope", "rl lr=1", "train attention=mlaa", "chat"]


def test_the_table_has_the_mistakes_of_all_commands():
    commands = {typed.split()[0] for typed, _ in MISTAKES}
    assert len(MISTAKES) >= 150
    assert commands >= {"train", "serve", "rl", "eval", "pipeline", "data", "sample", "conversations", "bench", "demo"}


@pytest.mark.parametrize(("typed", "meant"), MISTAKES, ids=[typed for typed, _ in MISTAKES])
def test_a_mistake_is_one_line_that_names_what_was_meant(typed, meant, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["arcforge"])
    assert main(shlex.split(typed)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert meant in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("typed", TIMED)
def test_a_mistake_takes_no_more_processor_time_than_a_second_and_a_half(typed, tmp_path):
    """In a process of its own: nothing is imported yet, and torch would take longer than that by itself."""
    before = os.times()
    command = [sys.executable, "-m", "arcforge_core", *typed.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    after = os.times()
    assert done.returncode == 2, done.stderr
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 1.5 and time.process_time() > 0
    assert "did you mean" in done.stderr or "nope" in done.stderr or "commands:" in done.stderr


def test_torch_is_not_imported_to_refuse_a_checkpoint(tmp_path):
    code = "from arcforge_core.cli.main import main; print(main(['train', 'init=nope']), 'torch' in sys.modules)"
    code = f"import sys; {code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]

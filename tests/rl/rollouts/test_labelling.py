"""``arcforge-env label`` in the terminal: answers, ends, prints, a process that is killed."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.config.compose import compose_config
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.labels import LabelConfig
from arcforge_rl.rollouts.labelling import printable, run


def label(folder: Path, said: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, float | str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    given = [f"items={folder / 'items.jsonl'}", "labeller=ann", f"output={folder / 'labels.jsonl'}", *options]
    return dict(run(compose_config("env_label", LabelConfig, given)).figures)


def write_pairs(folder: Path) -> None:
    rows = [{"prompt": f"p{n}", "chosen": f"good{n}", "rejected": f"bad{n}", "author_chosen": "ME"} for n in range(3)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_person_answers_leaves_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(tmp_path)
    found = label(tmp_path, "3\n1\ns\nq\n", monkeypatch)
    assert found["left"] == 2 and found["judgements"] == 1
    shown = capsys.readouterr().out
    assert "'3' is none of them" in shown and "1 of 3 judged" in shown and "ME" not in shown
    found = label(tmp_path, "=\n2\n", monkeypatch)
    assert found["left"] == 0 and found["judgements"] == 3
    assert label(tmp_path, "", monkeypatch)["left"] == 0, "nothing is asked twice"
    assert label(tmp_path, "1\n1\n1\n", monkeypatch, "labeller=bob")["shared"] == 3


def test_a_rubric_is_asked_by_criterion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "items.jsonl").write_text(json.dumps({"prompt": "p", "reply": "r"}) + "\n")
    (tmp_path / "r.toml").write_text('[[criterion]]\nname = "a"\n[[criterion]]\nname = "b"\n')
    options = (f"rubric={tmp_path / 'r.toml'}", f"anchors={tmp_path / 'anchors.toml'}")
    assert label(tmp_path, "3\n", monkeypatch, *options)["left"] == 1, "half a judgement is none"
    assert label(tmp_path, "3\n4\n", monkeypatch, *options)["left"] == 0
    (record,) = map(json.loads, (tmp_path / "labels.jsonl").read_text().splitlines())
    assert record["verdict"] == {"a": "yes", "b": "cannot tell"}
    assert 'verdict = { a = "yes", b = "cannot tell" }' in (tmp_path / "anchors.toml").read_text()


def test_texts_say_nothing_to_the_terminal() -> None:
    assert printable("a\x1b[2Jb\n\tc") == "a\N{REPLACEMENT CHARACTER}[2Jb\n\tc"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("items=",), "items"),
        (("labeller=",), "labeller"),
        (("anchors=a.toml",), "anchors"),
        (("port=70000",), "port"),
        (("limit=0",), "limit"),
    ],
)
def test_bad_options_are_named(options: tuple[str, ...], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}="):
        compose_config("env_label", LabelConfig, ["items=i.jsonl", "labeller=ann", *options])


@pytest.mark.nightly
def test_a_killed_process_has_lost_no_answer(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    command = [
        sys.executable, "-c", "from arcforge_rl.cli import main; raise SystemExit(main())", "label",
        "items=items.jsonl", "labeller=ann",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        while "2 of 3" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert len((tmp_path / "labels.jsonl").read_text().splitlines()) == 1
    done = subprocess.run(command, cwd=tmp_path, input="1\n1\n", capture_output=True, text=True, check=True)
    assert "3 of 3 judged" in done.stdout and len((tmp_path / "labels.jsonl").read_text().splitlines()) == 3
    bad = subprocess.run(
        [*command[:-2], "items=gone.jsonl", "labeller=a"], cwd=tmp_path, capture_output=True, text=True
    )
    assert bad.returncode == 2 and len(bad.stderr.strip().splitlines()) == 1

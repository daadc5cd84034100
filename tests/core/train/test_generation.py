"""Evaluation by generation inside a run: figures before, on the way and after, and training that it does not change."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.config.schema import TrainConfig
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.train import run as run_module
from arcforge_core.train.run import train
from support.runs import tiny_conversations_run

pytestmark = pytest.mark.slow(reason="up to two training runs a test, tiny as they are")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e11)


def run_config(folder: Path, *overrides: str) -> TrainConfig:
    folder.mkdir(exist_ok=True)
    records = [
        {
            "source": "says",
            "thinking": "off",
            "messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"{n}"}],
            "checker": {"name": "number", "arguments": {"answer": f"{n}"}},
        }
        for n in range(24)
    ]
    if not (folder / "heldout.json").exists():
        (folder / "heldout.json").write_text(json.dumps(records[20:]))
    return tiny_conversations_run(
        folder,
        records[:20],
        "trainer.samples=0",
        f"generation.files=[{folder / 'heldout.json'}]",
        "generation.max_new_tokens=3",
        "generation.engine=simple",
        *overrides,
    )


def evaluations(run_dir: Path) -> list[dict]:
    return json.loads((run_dir / "generation.json").read_text())["evaluations"]


def rows_of(run_dir: Path) -> list[dict]:
    return list(csv.DictReader((run_dir / "generation.csv").read_text().splitlines()))


def test_a_run_is_evaluated_before_on_the_way_and_after(tmp_path: Path) -> None:
    result = train(run_config(tmp_path, "generation.every=2", "generation.samples=1", "generation.limit=3"))
    found = evaluations(result.dir)
    assert [one["step"] for one in found] == [0, 2, 4]
    assert all(one["figures"]["says"]["answers"] == 3 and len(one["samples"]) == 1 for one in found)
    assert {"generation_exact", "generation_exact_before", "generation_exact_says"} <= set(result.figures)
    summary = json.loads((result.dir / "summary.json").read_text())
    assert summary["generation_truncated"] == found[-1]["figures"]["all"]["truncated"]
    rows = rows_of(result.dir)
    assert [(row["step"], row["source"]) for row in rows] == [(s, w) for s in "024" for w in ("says", "all")]
    assert "before training" in (result.dir / "report.html").read_text()


@pytest.mark.nightly(reason="three training runs")
def test_without_files_nothing_is_played_and_training_is_the_same(tmp_path: Path) -> None:
    config = run_config(tmp_path, "generation.every=1")
    played = train(config)
    silent = train(replace(config, generation=replace(config.generation, files=[])))
    assert not (silent.dir / "generation.json").exists() and "generation_exact" not in silent.figures
    states = [load_pretrained(find_checkpoint(run.dir)).state_dict() for run in (played, silent)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.nightly(reason="a training run with evaluations")
def test_before_can_be_left_out(tmp_path: Path) -> None:
    result = train(run_config(tmp_path, "generation.before=false"))
    assert [one["step"] for one in evaluations(result.dir)] == [4]
    assert "generation_exact_before" not in result.figures


def test_a_resumed_run_drops_what_it_does_again(tmp_path: Path) -> None:
    config = run_config(tmp_path, "generation.every=1", "trainer.max_steps=3")
    first = train(config)
    again = replace(config, resume=str(first.dir / "checkpoints" / "step-00000002"))
    train(replace(again, trainer=replace(again.trainer, max_steps=4)))
    assert [one["step"] for one in evaluations(first.dir)] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows_of(first.dir) if row["source"] == "all"] == list("01234")


def test_what_cannot_be_played_is_refused_before_work_starts(tmp_path: Path) -> None:
    config = run_config(tmp_path, "generation.before=false", "generation.files=[nowhere]")
    with pytest.raises(DataError, match=r"generation\.files='nowhere': no such file"):
        train(config)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ConfigError, match=r"generation\.limit=0: must be at least 1"):
        run_config(tmp_path, "generation.limit=0")

"""Runs on conversations: samples answer what was asked."""

import json
from pathlib import Path

import pytest

from arcforge_core.config.schema import TrainConfig
from arcforge_core.errors import ConfigError
from arcforge_core.train import run as run_module
from arcforge_core.train.run import train
from support.runs import tiny_conversations_run


@pytest.fixture(autouse=True)
def quick_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "write_report", lambda run_dir: run_dir / "report.html")
    monkeypatch.setattr(run_module, "matmul_rate", lambda *args: 1e11)


def run_config(folder: Path, *overrides: str) -> TrainConfig:
    records = [
        {"messages": [{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"{n} it is"}]}
        for n in range(40)
    ]
    return tiny_conversations_run(folder, records, "trainer.log_every=1", "trainer.samples=2", *overrides)


def test_a_run_trains_evaluates_and_samples_answers(tmp_path: Path) -> None:
    result = train(run_config(tmp_path, "trainer.max_steps=2"))
    samples = json.loads((result.dir / "samples.json").read_text())
    assert set(samples) == {"before", "after"} and len(samples["after"]) == 2
    for sample in samples["after"]:
        assert sample["prompt"].startswith("[gMASK]<sop><|user|>say ") and sample["prompt"].endswith("</think>")
    assert result.figures["steps"] == 2 and float(result.figures["bits_per_byte"]) > 0
    corpus = json.loads((result.dir / "corpus.json").read_text())
    assert corpus["encoder"]["corpora"]["chat"]["conversations"] == 40


def test_rows_that_would_cut_conversations_are_refused_before_work_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.sequence_length=8: the longest conversation has \d+ tokens"):
        train(run_config(tmp_path, "trainer.sequence_length=8", "trainer.micro_batch_tokens=8"))

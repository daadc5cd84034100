"""``arcforge-eval suite=conversations`` with a model that knows nothing."""

import json

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.cli.main import run_job
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer


@pytest.fixture
def checkpoint(tmp_path):
    model = small_model(vocab_size=TOKENIZER_SIZE, max_position_embeddings=64)
    save_pretrained(model, tmp_path / "model", small_tokenizer())
    return tmp_path / "model"


def write_records(path, count):
    messages = [{"role": "user", "content": "1 2?"}, {"role": "assistant", "content": "3"}]
    record = {"source": "s", "messages": messages, "checker": {"name": "number", "arguments": {"answer": "3"}}}
    too_long = {"messages": [{"role": "user", "content": "x y " * 99}, {"role": "assistant", "content": "3"}]}
    path.write_text("\n".join(json.dumps(r) for r in [*[record] * count, too_long, {"messages": 3}]))


def test_figures_rollouts_and_what_was_left_out(checkpoint, tmp_path, monkeypatch, capsys):
    write_records(tmp_path / "r.jsonl", 4)
    arguments = [
        "suite=conversations",
        f"checkpoint={checkpoint}",
        f"files=[{tmp_path / 'r.jsonl'}]",
        "max_new_tokens=5",
        "engine=simple",
        "hardware=torch_cpu",
        f"output={tmp_path / 'out'}",
        "limit=3",
    ]
    monkeypatch.setattr("sys.argv", ["arcforge-eval", *arguments])
    assert run_job("eval") == 0
    found = json.loads((tmp_path / "out" / "generation.json").read_text())
    assert found["figures"]["s"]["answers"] == 3 and found["read"] == {"s": 4, "r": 1}
    assert found["settings"]["max_new_tokens"] == 5 and found["settings"]["checkpoint"] == str(checkpoint)
    assert sorted(r["line"] for r in found["rejected"]) == [5, 6]
    rows = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(row["messages"][0]["content"] == "1 2?" for row in rows)
    shown = capsys.readouterr()
    assert "exact" in shown.out and "left out 2 of 6 records" in shown.err


def test_with_nothing_to_play_it_ends_in_one_line(checkpoint, tmp_path, monkeypatch, capsys):
    write_records(tmp_path / "r.jsonl", 0)
    files = f"files=[{tmp_path / 'r.jsonl'}]"
    monkeypatch.setattr("sys.argv", ["arcforge-eval", "suite=conversations", f"checkpoint={checkpoint}", files])
    assert run_job("eval") == 2
    assert "no conversation is playable" in capsys.readouterr().err.splitlines()[-1]

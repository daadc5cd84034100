"""A finished stage is one with these contents: a pipeline whose inputs have changed is not resumed in silence."""

import os
import shutil

import pytest

from arcforge_core import load_pretrained, save_pretrained
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.errors import CheckpointError
from arcforge_core.pipeline.plan import CommandLine
from arcforge_core.pipeline.run import run_pipeline
from arcforge_core.pipeline.state import PipelineState
from arcforge_core.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick")
ONE = {"base": ["trainer.sequence_length=32", "trainer.max_steps=2"]}


def run(recipe, **changes):
    return run_pipeline(recipe(stages=ONE, **changes), CommandLine()).dir


def test_other_texts_after_a_finished_stage_are_refused_and_named(recipe, tmp_path, capsys):
    folder, moved = run(recipe), tmp_path / "elsewhere" / "corpus"  # paths below a folder are keys of its texts
    again = recipe(stages=ONE, resume="latest")  # composing one writes the corpus
    elsewhere = [f"data.paths=[{moved}]" if o.startswith("data.paths") else o for o in again.overrides]
    text = min((tmp_path / "corpus").glob("*.py"))
    content = text.read_text()
    text.write_text(content + "# one more line\n")
    with pytest.raises(
        CheckpointError, match=r"data\.paths=.*corpus.*other contents than stage base began with.*1-base"
    ):
        run_pipeline(again, CommandLine())
    text.write_text(content)  # at another time, with the same contents
    assert run_pipeline(again, CommandLine()).dir == folder
    moved.parent.mkdir()
    shutil.move(tmp_path / "corpus", moved)
    again.overrides = elsewhere
    assert run_pipeline(again, CommandLine()).dir == folder
    shutil.rmtree(moved)
    capsys.readouterr()
    run_pipeline(again, CommandLine())
    assert "base: data can no longer be compared: " in capsys.readouterr().out


def test_another_checkpoint_of_the_same_name_is_refused_and_named(recipe, tmp_path):
    start = tmp_path / "start"
    first = find_checkpoint(run(recipe) / "1-base")
    save_pretrained(load_pretrained(first), start, Tokenizer.load(first))
    folder = run(recipe, init=str(start))
    assert PipelineState.read(folder).stages[0].inputs.keys() == {"data", "init"}
    for path in start.iterdir():
        os.utime(path)
    assert run(recipe, init=str(start), resume="latest") == folder
    model = load_pretrained(start)
    model.lm_head.weight.data.zero_()
    save_pretrained(model, start, Tokenizer.load(start))
    with pytest.raises(CheckpointError, match=r"init=.*start has other contents than stage base began with"):
        run(recipe, init=str(start), resume="latest")


def test_an_evaluation_runs_again_when_its_checkpoint_has_changed(recipe, tmp_path, capsys):
    """It has left nothing in the pipeline's folder, so nothing has to be removed first."""
    kept, model = find_checkpoint(run(recipe) / "1-base"), tmp_path / "model"
    save_pretrained(load_pretrained(kept), model, Tokenizer.load(kept))
    small = ["sequence_length=32", "micro_batch_tokens=32", "max_tokens=32", "functions=0", f"checkpoint={model}"]
    data = [override for override in recipe().overrides if override.startswith("data")]
    stages = {"score": {"job": "eval", "overrides": [*data, *small]}}
    before = run_pipeline(recipe(stages=stages), CommandLine())
    changed = load_pretrained(model)
    changed.lm_head.weight.data.zero_()
    save_pretrained(changed, model, Tokenizer.load(model))
    capsys.readouterr()
    after = run_pipeline(recipe(stages=stages, resume="latest"), CommandLine())
    assert "score runs again: checkpoint=" in capsys.readouterr().out
    assert after.figures["score.bits_per_byte"] != before.figures["score.bits_per_byte"]

"""``arcforge-swa-search``: its scores, from weights loaded once, and the files it leaves."""

import json
import sys

import pytest
import torch

from arcforge_attention.configs import GqaConfig, MlaConfig, SwaConfig, SwaPatternConfig, SwaSearchConfig
from arcforge_attention.swa_command import PatternScore, search, set_pattern, windowed
from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.checkpoint.start import start_from
from arcforge_core.cli.main import run_job
from arcforge_core.configs import FilesDataConfig, SimpleEngineConfig, TorchCpuConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.long_context.command import heldout_texts
from arcforge_core.eval.long_context.run import Grid, evaluate_long_context
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.build import build_model
from arcforge_core.testing.small_models import small_config
from support.runs import write_corpus

QUICK = {"tasks": ["single", "multi_value"], "lengths": [200], "depths": [0.0, 0.5], "samples": 1, "window": 16}
SIZES = small_config(
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=512, max_position_embeddings=256
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of an untrained model with QK-norm and biases, its data config and corpus."""
    root = tmp_path_factory.mktemp("search")
    data = FilesDataConfig(paths=[str(write_corpus(root / "corpus"))], cache_dir=str(root / "cache"), heldout=0.3)
    corpus = build_data(data, model_vocab_size=512, progress=False)
    torch.manual_seed(0)
    save_pretrained(build_model(SIZES, GqaConfig(qk_norm=True, bias=True)), root / "model", corpus.tokenizer)
    return root / "model", data, corpus


def config_of(saved, tmp_path, **options):
    options = {"checkpoint": str(saved[0]), "output": str(tmp_path / "found"), **QUICK, **options}
    return SwaSearchConfig(data=saved[1], hardware=TorchCpuConfig(), **options)


@torch.no_grad()
def logits(model):
    return model((torch.arange(60) % 50)[None]).logits


@pytest.mark.parametrize("pattern", ["SFSF", "FFSS", "FFFF"])
def test_a_switched_model_is_the_one_built_with_the_pattern(saved, pattern):
    model = windowed(load_pretrained(saved[0]), 16, "here")
    set_pattern(model, "SSSS")
    set_pattern(model, pattern)
    built = build_model(SIZES, SwaPatternConfig(pattern=pattern, window=16, qk_norm=True, bias=True)).eval()
    start_from(built, str(saved[0]))
    assert model.attention == built.attention and model.cache_spec() == built.cache_spec()
    assert model.mtp.self_attn.window == built.mtp.self_attn.window
    torch.testing.assert_close(logits(model), logits(built), rtol=0, atol=0)
    prompts, params = [list(range(40)), [3, 4]], SamplingParams(5, temperature=0.0)
    outputs = [SimpleEngine(SimpleEngineConfig(), m).generate(prompts, params) for m in (model, built)]
    assert outputs[0] == outputs[1]


def test_windows_matter_here(saved):
    """Or the test above would say little."""
    model = windowed(load_pretrained(saved[0]), 16, "here")
    found = []
    for pattern in ("FFFF", "SFSF", "FFSS"):
        set_pattern(model, pattern)
        found.append(logits(model))
    assert not torch.allclose(found[0], found[1], atol=1e-3) and not torch.allclose(found[1], found[2], atol=1e-3)


def test_tied_weights_stay_tied(tmp_path):
    sizes = small_config(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    trained = build_model(sizes, SwaConfig(window=3)).eval()
    model = windowed(trained, 3, "here")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    set_pattern(model, "SF")
    torch.testing.assert_close(logits(model), logits(trained), rtol=0, atol=0)


def test_a_score_is_the_long_context_evaluation_then_the_loss_of_the_answers(saved, monkeypatch):
    model = windowed(load_pretrained(saved[0]), 16, "here")
    # an untrained model answers nothing: the sum of its tokens decides here
    judge = lambda example, said: sum(map(ord, said)) % 97 / 97  # noqa: E731
    monkeypatch.setattr("arcforge_attention.swa_command.score", judge)
    monkeypatch.setattr("arcforge_core.eval.long_context.run.score", judge)
    grid = Grid(QUICK["tasks"], QUICK["lengths"], QUICK["depths"], 2, 5)
    tokenizer = saved[2].tokenizer
    scorer = PatternScore(model, tokenizer, heldout_texts(saved[1]), grid)
    accuracy, minus_loss = scorer("SFFS")
    built = build_model(SIZES, SwaPatternConfig(pattern="SFFS", window=16, qk_norm=True, bias=True)).eval()
    start_from(built, str(saved[0]))
    report = evaluate_long_context(
        SimpleEngine(SimpleEngineConfig(), built), tokenizer, saved[2].heldout_documents(),
        grid.tasks, grid.lengths, grid.depths, grid.samples, grid.seed,
    )  # fmt: skip
    assert accuracy == pytest.approx(report.overall(), abs=1e-12)
    total, count = 0.0, 0
    for example in scorer.examples:
        prompt = [tokenizer.bos_id, *tokenizer.encode(example.prompt)]
        answer = tokenizer.encode(" " + ", ".join(example.answers))
        with torch.no_grad():
            logprobs = built(torch.tensor([[*prompt, *answer]])).logits[0].double().log_softmax(-1)
        total -= sum(float(logprobs[len(prompt) + n - 1, token]) for n, token in enumerate(answer))
        count += len(answer)
    assert minus_loss == pytest.approx(-total / count, rel=1e-5)


def test_searches_keeps_the_result_and_goes_on(saved, tmp_path, monkeypatch, capsys):
    result = search(config_of(saved, tmp_path))
    content = json.loads((tmp_path / "found" / "swa_search.json").read_text())
    assert content["pattern"].count("S") == content["pattern"].count("F") == 2
    assert content["settings"]["beam"] == 8 and content["settings"]["window"] == 16
    assert set(content["scores"]) >= {"FFFF", "SFSF"} and len(content["scores"]) == 7 == result.figures["patterns"]
    assert result.figures["answer_loss"] == -content["score"][1]
    printed = capsys.readouterr()
    assert f"attention=swa_pattern attention.pattern={content['pattern']} attention.window=16" in printed.out
    assert "at most 7 patterns, 0 are scored" in printed.err
    assert "step 1 of 1, patterns with 2 windows: 6" in printed.err
    monkeypatch.setattr(PatternScore, "__call__", lambda *args: pytest.fail("scored again"))
    assert search(config_of(saved, tmp_path)) == result
    with pytest.raises(DataError, match=r"a different search: beam=8 \(now 1\)"):
        search(config_of(saved, tmp_path, beam=1))


def test_every_search_has_a_folder_of_its_own(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {search(config_of(saved, tmp_path, output=None, tasks=["single"], seed=n)).dir for n in (0, 1)}
    assert len(folders) == 2 and all((folder / "swa_search.json").is_file() for folder in folders)


@pytest.mark.parametrize(
    ("options", "field", "told"),
    [
        ({"checkpoint": None}, "checkpoint", "outputs/latest"),
        ({"window": 0}, "window", "at least 1"),
        ({"window_layers": 0}, "window_layers", "at least 1"),
        ({"window_layers": 5}, "window_layers", "the model's 4 layers"),
        ({"beam": 0}, "beam", "at least 1"),
        ({"layers_per_step": 0}, "layers_per_step", "at least 1"),
        ({"samples": 0}, "samples", "at least 1"),
        ({"seed": -1}, "seed", "at least 0"),
        ({"tasks": []}, "tasks", "at least one"),
        ({"tasks": ["riddle"]}, "tasks", "single"),
        ({"depths": [0.25]}, "depths", "0.1"),
        ({"lengths": [257]}, "lengths", "must be at most the model's 256 positions"),
        ({"lengths": [50]}, "length", "needs at least"),
    ],
)
def test_bad_options_are_refused_by_name(saved, tmp_path, options, field, told):
    with pytest.raises(ConfigError, match=told) as error:
        search(config_of(saved, tmp_path, **options))
    assert error.value.field == field


def test_latents_have_no_windows(saved, tmp_path):
    save_pretrained(build_model(SIZES, MlaConfig()), tmp_path / "mla", saved[2].tokenizer)
    with pytest.raises(ConfigError, match="its attention is mla; a search starts from gqa, swa, swa_pattern"):
        search(config_of(saved, tmp_path, checkpoint=str(tmp_path / "mla")))


def test_on_the_command_line(saved, tmp_path, monkeypatch, capsys):
    data = [f"data.paths=[{saved[1].paths[0]}]", "data=files", "data.heldout=0.3", "hardware=torch_cpu"]
    quick = ["tasks=[single]", "lengths=[200]", "depths=[0.5]", "samples=1", "window=16", f"output={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["arcforge-swa-search", f"checkpoint={saved[0]}", *data, *quick])
    assert run_job("swa-search") == 0
    assert (tmp_path / "swa_search.json").is_file()
    monkeypatch.setattr(sys, "argv", ["arcforge-swa-search", "checkpoint=x", "taks=[single]"])
    assert run_job("swa-search") == 2
    assert "did you mean 'tasks'" in capsys.readouterr().err

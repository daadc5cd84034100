import dataclasses

import pytest

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.schema import EvalConfig
from arcforge_core.configs import FilesDataConfig, LanguageModelSuiteConfig, ReferenceAttentionConfig, TorchCpuConfig
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.eval.compression import compression_baselines
from arcforge_core.eval.run import evaluate
from arcforge_core.model.build import build_model
from arcforge_core.testing.small_models import small_config
from support.runs import write_corpus


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run's folder with a checkpoint of an untrained model, its data config and corpus."""
    root = tmp_path_factory.mktemp("eval")
    paths = [str(write_corpus(root / "corpus"))]
    data = FilesDataConfig(paths=paths, cache_dir=str(root / "cache"), heldout=0.2)
    corpus = build_data(data, model_vocab_size=512, progress=False)
    model = build_model(small_config(vocab_size=512, max_position_embeddings=128), ReferenceAttentionConfig())
    for step in (2, 10):
        save_pretrained(model, root / "run" / "checkpoints" / f"step-{step:08d}", corpus.tokenizer)
    return root / "run", data, corpus


def config_of(saved, checkpoint=None, data=None, **options) -> EvalConfig:
    run, corpus, _ = saved
    options = {"sequence_length": 64, "micro_batch_tokens": 256, "functions": 3, "max_new_tokens": 8} | options
    return EvalConfig(LanguageModelSuiteConfig(**options), checkpoint or str(run), data or corpus, TorchCpuConfig())


def test_measures_the_last_checkpoint_of_a_run(saved, capsys):
    run, _, corpus = saved
    result = evaluate(config_of(saved))
    assert result.dir == run / "checkpoints" / "step-00000010"
    metrics = result.figures
    assert metrics["num_bytes"] == len(corpus.heldout_bytes())
    assert metrics["gzip_bits_per_byte"] == compression_baselines(corpus.heldout_bytes())["gzip"]
    assert metrics["bits_per_byte"] > metrics["gzip_bits_per_byte"]  # an untrained model knows nothing
    assert metrics["functions"] == 3 and metrics["functions_rate"] == 0.0
    assert metrics["tokens_per_s"] > 0
    printed = capsys.readouterr().out
    assert "bits per byte" in printed and "xz -9e" in printed and "share that parses" in printed


def test_measures_a_part_without_functions(saved):
    metrics = evaluate(config_of(saved, max_tokens=300, functions=0)).figures
    assert metrics["tokens"] == 256  # whole micro-batches
    assert "functions_rate" not in metrics


def test_data_settings_are_left_alone(saved):
    config = config_of(saved, functions=0)
    evaluate(config)
    assert config.data.tokenizer.path is None


def test_refuses_what_cannot_be_measured(saved, tmp_path):
    run, data, _ = saved
    with pytest.raises(CheckpointError, match="neither a model"):
        evaluate(config_of(saved, checkpoint=str(tmp_path)))
    nothing = dataclasses.replace(config_of(saved), checkpoint=None)
    with pytest.raises(ConfigError, match=r"checkpoint=None: .* as checkpoint=outputs/latest"):
        evaluate(nothing)
    with pytest.raises(ConfigError, match=r"suite\.sequence_length=256.*at most 128"):
        evaluate(config_of(saved, sequence_length=256))
    other = FilesDataConfig(paths=data.paths, cache_dir=data.cache_dir)
    other.tokenizer.path = str(run / "checkpoints" / "step-00000002")
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.path"):
        evaluate(config_of(saved, data=other))

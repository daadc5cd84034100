"""``arcforge-eval``: runs a suite. The language-model suite measures bits per byte and functions that parse."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained
from arcforge_core.config.schema import DataConfig, EvalConfig
from arcforge_core.configs import LanguageModelSuiteConfig, SimpleEngineConfig
from arcforge_core.console.progress import working
from arcforge_core.console.result import Result
from arcforge_core.data.tokens.pipeline import Corpus, build_data
from arcforge_core.errors import ConfigError
from arcforge_core.eval.bits_per_byte import bits_per_byte
from arcforge_core.eval.compression import compression_baselines
from arcforge_core.eval.python_functions import function_names, sample_functions
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.plugins.loader import registry

LABELS = {
    "bits_per_byte": "bits per byte",
    "gzip_bits_per_byte": "gzip -9",
    "xz_bits_per_byte": "xz -9e",
    "loss": "nats per token",
    "tokens": "tokens measured",
    "num_bytes": "bytes measured",
    "tokens_per_s": "tokens/s",
    "functions": "functions sampled",
    "functions_rate": "share that parses",
}


def evaluate(config: EvalConfig) -> Result:
    """Runs the chosen suite; returns its figures and the folder that they belong to.

    Raises:
        ArcforgeError: the suite refuses its input.
    """
    result: Result = registry().get("suite", config.suite.name).load()(config)
    return result


def chosen_checkpoint(checkpoint: str | None, data: DataConfig) -> Path:
    """Returns the folder of the checkpoint to measure on a corpus.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ConfigError: no checkpoint is named, or another tokenizer than the checkpoint's is requested.
    """
    if checkpoint is None:
        raise ConfigError("checkpoint", None, "a run or a model must be named, as checkpoint=outputs/latest")
    folder = find_checkpoint(checkpoint)
    if data.tokenizer.path is not None:
        raise ConfigError("data.tokenizer.path", data.tokenizer.path, "must be null: the checkpoint has its own")
    return folder


def load_with_corpus(config: EvalConfig, sequence_length: int) -> tuple[Path, CausalLM, Corpus]:
    """Returns the checkpoint's folder, its model, and the corpus in its tokenizer's tokens.

    Raises:
        CheckpointError, ConfigError: see `chosen_checkpoint`; also if the sequence length exceeds the model's.
        DataError: the corpus cannot be used.
    """
    folder = chosen_checkpoint(config.checkpoint, config.data)
    hardware = build_hardware(config.hardware)
    model = load_pretrained(folder, ops=Ops(hardware)).to(hardware.identity.device)
    limit = model.config.max_position_embeddings
    if sequence_length > limit:
        raise ConfigError("suite.sequence_length", sequence_length, f"the model allows at most {limit} positions")
    tokenizer = dataclasses.replace(config.data.tokenizer, path=str(folder))
    data = dataclasses.replace(config.data, tokenizer=tokenizer)
    return folder, model, build_data(data, model_vocab_size=model.config.vocab_size)


def measure_language_model(config: EvalConfig) -> Result:
    """Measures a checkpoint, prints a table and returns it with the checkpoint's folder.

    Raises:
        CheckpointError, ConfigError: see `load_with_corpus`.
        DataError: there is no held-out text.
    """
    suite = config.suite
    assert isinstance(suite, LanguageModelSuiteConfig)
    folder, model, corpus = load_with_corpus(config, suite.sequence_length)
    figures = Result(folder, measure(model, corpus, suite))
    figures.show(str(folder), LABELS)
    return figures


def measure(model: CausalLM, corpus: Corpus, suite: LanguageModelSuiteConfig) -> dict[str, float]:
    """Returns the figures by name, without those of functions if no held-out file defines any."""
    start = time.perf_counter()
    with working("evaluating on held-out text"):
        result = bits_per_byte(
            model, corpus.heldout_batches(suite.sequence_length, suite.micro_batch_tokens, suite.max_tokens)
        )
    metrics = {**dataclasses.asdict(result), "tokens_per_s": result.tokens / (time.perf_counter() - start)}
    with working("compressing held-out text"):
        baselines = compression_baselines(corpus.heldout_bytes())
    metrics |= {f"{name}_bits_per_byte": bits for name, bits in baselines.items()}
    names = function_names(corpus.heldout_documents(), suite.functions, suite.seed)
    if names:
        with working("sampling functions"):
            report = sample_functions(
                SimpleEngine(SimpleEngineConfig(), model),
                corpus.tokenizer,
                names,
                temperature=suite.temperature,
                max_new_tokens=suite.max_new_tokens,
                seed=suite.seed,
            )
        metrics |= {"functions": len(report.samples), "functions_rate": report.rate}
    return metrics

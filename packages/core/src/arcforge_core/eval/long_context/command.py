"""``arcforge-eval suite=long_context``: measures a checkpoint or an endpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.config.schema import DataConfig, EvalConfig
from arcforge_core.configs import LongContextSuiteConfig, SimpleEngineConfig
from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.contracts.data import DocumentSource
from arcforge_core.data.sources.text import digest
from arcforge_core.data.split import heldout_documents
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.long_context.endpoint import ApproximateTokenizer, Endpoint
from arcforge_core.eval.long_context.figures import headline, table, write_figures
from arcforge_core.eval.long_context.report import LongContextReport
from arcforge_core.eval.long_context.run import Grid, engine_completer, filler_texts, lengths_in, run_grid, settings_of
from arcforge_core.eval.run import chosen_checkpoint
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.tokenizer import Tokenizer

OUTPUT = Path("outputs/long_context")


def measure_long_context(config: EvalConfig) -> Result:
    """Measures, prints a table, writes the report with its figures, and returns the scores with the report's folder.

    Raises:
        ArcforgeError: the endpoint fails; finished cells are kept.
        CheckpointError: there is no usable checkpoint.
        ConfigError: a length exceeds the model's or is too short for a task, or options exclude each other.
        DataError: there is no held-out text, or the output folder holds another evaluation.
    """
    suite = config.suite
    assert isinstance(suite, LongContextSuiteConfig)
    output, report = (_measure_checkpoint if suite.endpoint is None else _measure_endpoint)(config, suite)
    page = write_figures(report, output)
    print(headline(report))
    Console(markup=False, highlight=False).print(table(report))
    print(f"page {page}")
    scores = {f"score_{length}": score for length, score in report.by_length().items()}
    return Result(output, {"score": report.overall(), **scores})


def _measure_checkpoint(config: EvalConfig, suite: LongContextSuiteConfig) -> tuple[Path, LongContextReport]:
    folder = chosen_checkpoint(config.checkpoint, config.data).resolve()
    hardware = build_hardware(config.hardware)
    model, tokenizer = load_with_tokenizer(folder, hardware)
    limit = model.config.max_position_embeddings
    if max(suite.lengths) > limit:
        raise ConfigError("suite.lengths", max(suite.lengths), f"the model allows at most {limit} positions")
    texts = heldout_texts(config.data)
    weights = weights_digest(folder)
    settings = settings_of(str(folder), lengths_in(tokenizer), texts, suite.seed, weights=weights)
    output = _output(suite, folder.name, settings)
    engine = SimpleEngine(SimpleEngineConfig(), model)
    return output, run_grid(engine_completer(engine, tokenizer), tokenizer, texts, _grid(suite), settings, output)


def _measure_endpoint(config: EvalConfig, suite: LongContextSuiteConfig) -> tuple[Path, LongContextReport]:
    assert suite.endpoint is not None
    if config.checkpoint is not None:
        raise ConfigError("checkpoint", config.checkpoint, "suite.endpoint is measured instead; leave one of them out")
    tokenizer = _tokenizer(suite.tokenizer)
    counted = ApproximateTokenizer.words if isinstance(tokenizer, ApproximateTokenizer) else lengths_in(tokenizer)
    texts = heldout_texts(config.data)
    with Endpoint(suite.endpoint, suite.model, os.environ.get("ARCFORGE_API_KEY")) as endpoint:
        settings = settings_of(endpoint.name, counted, texts, suite.seed)
        output = _output(suite, "endpoint", settings)
        return output, run_grid(endpoint, tokenizer, texts, _grid(suite), settings, output)


def _grid(suite: LongContextSuiteConfig) -> Grid:
    return Grid(suite.tasks, suite.lengths, suite.depths, suite.samples, suite.seed)


def heldout_texts(data: DataConfig) -> Sequence[str]:
    """Returns the held-out texts of a corpus.

    Raises:
        DataError: there are none.
    """
    source: DocumentSource = registry().get("data", data.name).load()(data)
    return filler_texts(heldout_documents(source, data.heldout))


def weights_digest(folder: Path) -> str:
    """Returns a short hash of the names, sizes and modification times of a checkpoint's weight files."""
    stats = [(path.name, path.stat()) for path in sorted(folder.glob("*.safetensors"))]
    return digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def _tokenizer(path: str | None) -> Tokenizer | ApproximateTokenizer:
    if path is None:
        return ApproximateTokenizer()
    try:
        return Tokenizer.load(path)
    except DataError as error:
        reason = str(error).removeprefix(f"data.tokenizer.path={path!r}: ")
        raise ConfigError("suite.tokenizer", path, reason) from error


def _output(suite: LongContextSuiteConfig, name: str, settings: dict[str, Any]) -> Path:
    """Returns the results folder; the default depends on the evaluation only, so a rerun finds it again."""
    output = OUTPUT / f"{name}-{digest(settings)[:8]}" if suite.output is None else Path(suite.output)
    say(f"results go to {output}; the same command resumes after an interruption")
    return output

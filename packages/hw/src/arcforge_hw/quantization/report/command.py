"""``arcforge-eval suite=quantization``: quantises a checkpoint in several ways and compares them on held-out text."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from arcforge_core.checkpoint.hf.folder import OWN
from arcforge_core.checkpoint.packed import QUANTISED
from arcforge_core.checkpoint.pretrained import Checkpoint, load_pretrained, open_checkpoint
from arcforge_core.checkpoint.sections import read_json
from arcforge_core.config.schema import EvalConfig
from arcforge_core.console.result import Result
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.data.sources.text import digest
from arcforge_core.errors import CheckpointError, ConfigError, DataError
from arcforge_core.eval.bits_per_byte import bits_per_byte
from arcforge_core.eval.run import chosen_checkpoint
from arcforge_core.files.rundir import write_json
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.plugins.loader import registry
from arcforge_hw.quantization.command import quantise
from arcforge_hw.quantization.configs import METHODS, QuantizationSuiteConfig, QuantizeConfig, quantizer_of
from arcforge_hw.quantization.report.figures import FILE, FLOAT, show, write_page
from arcforge_hw.quantization.report.measure import Distance, distance
from arcforge_hw.quantization.rotations import Rotations, form_of
from arcforge_hw.quantization.text import checkpoint_corpus

OUTPUT = Path("outputs/quantization")
Row = dict[str, Any]


def measure_quantization(config: EvalConfig) -> Result:
    """Writes ``report.json`` and a page, prints a table, and returns each row's divergence with the report's folder.

    A killed command resumes at the row that it was in. Quantised checkpoints are removed when they are measured.

    Raises:
        CheckpointError: there is no usable checkpoint, or it is quantised already.
        ConfigError: a recipe does not fit the model, or the text does not.
        DataError: there is no held-out text, or the output folder holds another comparison.
    """
    suite = config.suite
    assert isinstance(suite, QuantizationSuiteConfig)
    folder = chosen_checkpoint(config.checkpoint, config.data).resolve()
    if QUANTISED in read_json(folder):
        raise CheckpointError(f"{folder} is quantised already: compare on the original checkpoint")
    opened = open_checkpoint(folder)
    _check(suite, opened)
    corpus = checkpoint_corpus(config.data, folder, opened.config.vocab_size)
    batches = list(corpus.heldout_batches(suite.sequence_length, suite.sequence_length, suite.max_tokens))
    settings = {"checkpoint": str(folder), "data": asdict(config.data), "suite": _shared(suite)}
    name = f"{folder.name}-{digest(settings)[:8]}"
    output = OUTPUT / name if suite.output is None else Path(suite.output)
    known = _known(output, settings)
    ops = Ops(build_hardware(config.hardware))
    original = load_pretrained(folder, ops=ops).to(build_hardware(config.hardware).identity.device)
    rows = [_float_row(original, folder, batches)]
    for weights in suite.weights:
        for method in suite.methods:
            row = known.get((weights, method)) or _row(config, weights, method, output, original, ops, batches)
            known[weights, method] = row
            _save(output, settings, [rows[0], *known.values()])
            rows.append(row)
    show(rows, str(folder))
    print(f"page {write_page(rows, output, settings)}")
    return Result(output, {f"kl_{row['weights']}_{row['method']}": row["kl"] for row in rows[1:]})


def _check(suite: QuantizationSuiteConfig, opened: Checkpoint) -> None:
    """Builds every recipe, which reads no tensor; raises `ConfigError`."""
    limit = opened.config.max_position_embeddings
    if suite.sequence_length > limit:
        raise ConfigError("suite.sequence_length", suite.sequence_length, f"the model allows at most {limit} positions")
    for weights in suite.weights:
        for method in suite.methods:
            recipe = quantizer_of(method, weights, suite)
            registry().get("quantizer", recipe.name).load().build(recipe, opened)


def _shared(suite: QuantizationSuiteConfig) -> Row:
    """Returns the settings that all rows share, so that a later command may add rows."""
    return {"rows": suite.rows, "sequence_length": suite.sequence_length, "max_tokens": suite.max_tokens}


def _known(output: Path, settings: Row) -> dict[tuple[str, str], Row]:
    """Returns the rows that an earlier command measured."""
    path = output / FILE
    if not path.is_file():
        return {}
    report = json.loads(path.read_text(encoding="utf-8"))
    if report["settings"] != settings:
        raise DataError(f"{output} holds a comparison with other settings: remove it, or choose another suite.output")
    return {(row["weights"], row["method"]): row for row in report["rows"] if row["method"] != FLOAT}


def _save(output: Path, settings: Row, rows: list[Row]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / FILE, {"settings": settings, "rows": rows})


def _float_row(original: Any, folder: Path, batches: list[TrainBatch]) -> Row:
    found = bits_per_byte(original, batches)
    exact = Distance(found.bits_per_byte, found.loss, 0.0, 1.0, (0.0,) * original.config.num_hidden_layers)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    dtype = str(next(original.parameters()).dtype).removeprefix("torch.")
    return {"weights": dtype, "method": FLOAT, "bytes": size, "seconds": 0.0, **asdict(exact)}


def _row(
    config: EvalConfig, weights: str, method: str, output: Path, original: Any, ops: Ops, batches: list[TrainBatch]
) -> Row:
    """Quantises, measures and removes the checkpoint."""
    suite = config.suite
    assert isinstance(suite, QuantizationSuiteConfig)
    target, start = output / f"{weights}-{method}", time.perf_counter()
    if target.exists():  # killed while it was measured
        shutil.rmtree(target)
    recipe = quantizer_of(method, weights, suite)
    made = quantise(QuantizeConfig(recipe, str(config.checkpoint), str(target), config.data))
    seconds = time.perf_counter() - start
    model = load_pretrained(target, ops=ops).to(original.device)
    seed = read_json(target)[QUANTISED][OWN]["seed"]
    turn_DD: torch.Tensor | None = None
    if seed is not None:
        turn_DD = Rotations(original.config, form_of(original.attention), seed).hidden
    found = distance(original, model, batches, turn_DD)
    shutil.rmtree(target)
    return {
        "weights": weights, "method": method, "bytes": int(made.figures["bytes"]), "seconds": round(seconds, 1),
        **asdict(found), "options": METHODS[method],
    }  # fmt: skip

"""Rows of calibration text: the training side of a corpus, in the checkpoint's tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

from torch import Tensor

from arcforge_core.config.schema import DataConfig
from arcforge_core.console.progress import say
from arcforge_core.data.tokens.pipeline import Corpus, build_data
from arcforge_core.errors import ConfigError
from arcforge_core.files.find import tokenizer_of
from arcforge_core.train.processes import gather, place
from arcforge_hw.quantization.configs import CalibratedConfig

Row = tuple[Tensor, list[int]]
"""Token ids int64 [T] of a row, and the lengths of its documents."""


def calibration_rows(config: CalibratedConfig, data: DataConfig, folder: Path, vocab_size: int) -> list[Row]:
    """Returns at most ``config.rows`` rows of ``config.sequence_length`` tokens; no token is used twice.

    Of several processes the first one reads the corpus, and all return its rows.

    Args:
        config: number and length of the rows, and the seed of their order.
        data: the corpus.
        folder: the checkpoint, whose tokenizer is used.
        vocab_size: rows of the model's embedding.

    Raises:
        ConfigError: the text is shorter than one row, there are fewer rows than processes, or as `checkpoint_corpus`.
        DataError: the corpus cannot be read.
    """
    rank, count = place()
    rows = gather(None if rank else _read_rows(config, data, folder, vocab_size))[0]
    assert rows is not None
    if len(rows) < count:
        raise ConfigError("WORLD_SIZE", count, f"must be at most {len(rows)}, the rows of calibration text")
    return rows


def _read_rows(config: CalibratedConfig, data: DataConfig, folder: Path, vocab_size: int) -> list[Row]:
    corpus = checkpoint_corpus(data, folder, vocab_size)
    length = config.sequence_length
    rows = min(config.rows, _whole_rows(corpus, length))
    if rows < config.rows:
        say(f"calibration: the text has {rows} rows of {length} tokens, fewer than quantizer.rows={config.rows}")
    batches = islice(corpus.train_batches(length, length, config.seed), rows)
    return [(batch.tokens_T, batch.batch.query_lengths()) for batch in batches]


def checkpoint_corpus(data: DataConfig, folder: Path, vocab_size: int) -> Corpus:
    """Returns a corpus in a checkpoint's tokens, packed as ``sequential``.

    Raises:
        ConfigError: another tokenizer than the checkpoint's is named, or the checkpoint has none.
        DataError: the corpus cannot be read.
    """
    if data.tokenizer.path is not None:
        raise ConfigError("data.tokenizer.path", data.tokenizer.path, "must be null: the checkpoint has its own")
    own = tokenizer_of(str(folder))
    if own is None:
        raise ConfigError("checkpoint", str(folder), "must have a tokenizer.json, which encodes the text")
    plain = replace(
        data, tokenizer=replace(data.tokenizer, path=own), packing="sequential", long_share=DataConfig.long_share,
        long_repeats=DataConfig.long_repeats,
    )  # fmt: skip
    return build_data(plain, model_vocab_size=vocab_size)


def _whole_rows(corpus: Corpus, length: int) -> int:
    """Returns the number of rows that the training documents fill; raises `ConfigError` if they fill none."""
    counts = corpus.manifest["splits"]["train"].values()
    tokens = sum(count["tokens"] - count["documents"] for count in counts)
    if tokens < length:
        accepted = f"must be at most {tokens}, all that the calibration text has"
        raise ConfigError("quantizer.sequence_length", length, accepted)
    return int(tokens // length)

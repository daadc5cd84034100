"""Implements ``arcforge-swa-search``: scores patterns of windows on the long-context evaluation, without training.

Weights are loaded once; only the windows of the layers change between patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, cast

import torch

from arcforge_attention.configs import GqaConfig, SwaConfig, SwaPatternConfig, SwaSearchConfig
from arcforge_attention.swa import SWA
from arcforge_attention.swa_search import (
    Score,
    checked_windows,
    most_scores,
    read_scores,
    search_pattern,
    write_result,
)
from arcforge_core.checkpoint.pretrained import load_with_tokenizer
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.data.sources.text import digest
from arcforge_core.errors import ConfigError
from arcforge_core.eval.bits_per_byte import negative_log_likelihood
from arcforge_core.eval.long_context.command import heldout_texts, weights_digest
from arcforge_core.eval.long_context.report import Cell, LongContextReport
from arcforge_core.eval.long_context.run import BATCH_TOKENS, Grid, engine_completer, lengths_in, settings_of
from arcforge_core.eval.long_context.tasks import Example, ExampleMaker, score
from arcforge_core.eval.run import chosen_checkpoint
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.block import Block
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.hardware import build_hardware

if TYPE_CHECKING:
    from arcforge_core.tokenizer.tokenizer import Tokenizer

OUTPUT = Path("outputs/swa_search")
SEARCHED = ("gqa", "swa", "swa_pattern")
"""Variants that a search can start from: their layers have the parameters of `SWA`."""


def search(config: SwaSearchConfig) -> Result:
    """Searches, keeps the result in a file and prints how to use it; returns the scores with the result's folder.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ConfigError: the checkpoint's attention is not supported, more windows than layers, or an impossible length.
        DataError: no held-out text, or the output folder contains a different search.
    """
    folder = chosen_checkpoint(config.checkpoint, config.data).resolve()
    trained, tokenizer = load_with_tokenizer(folder, build_hardware(config.hardware))
    model = windowed(trained, config.window, str(folder))
    layers, limit = model.config.num_hidden_layers, model.config.max_position_embeddings
    if max(config.lengths) > limit:
        raise ConfigError("lengths", max(config.lengths), f"must be at most the model's {limit} positions")
    texts = heldout_texts(config.data)
    grid = Grid(config.tasks, config.lengths, config.depths, config.samples, config.seed)
    settings = settings_of(str(folder), lengths_in(tokenizer), texts, config.seed, weights=weights_digest(folder)) | {
        name: getattr(config, name)
        for name in ("tasks", "lengths", "depths", "samples", "window", "window_layers", "beam", "layers_per_step")
    }
    output = OUTPUT / f"{folder.name}-{digest(settings)[:8]}" if config.output is None else Path(config.output)
    say(f"writing the result to {output}; the same command resumes an interrupted search")
    known = read_scores(output, settings)
    windows = checked_windows(config.window_layers, layers)
    say(
        f"at most {most_scores(layers, windows, config.beam, config.layers_per_step)} patterns, {len(known)} are scored"
    )
    scorer = PatternScore(model, tokenizer, texts, grid)
    result = search_pattern(
        scorer,
        layers,
        windows=windows,
        beam=config.beam,
        layers_per_step=config.layers_per_step,
        known=known,
        keep=lambda found: write_result(output, settings, found),
    )
    named = {"": result.pattern, "_full": "F" * layers}
    if 2 * windows == layers:
        named["_alternating"] = "SF" * windows  # the pattern of `attention=swa`
    for pattern in named.values():
        if pattern not in result.scores:
            result.scores[pattern] = known[pattern] if pattern in known else scorer(pattern)
    write_result(output, settings, result)
    metrics = {f"score{name}": result.scores[pattern][0] for name, pattern in named.items()}
    metrics |= {f"answer_loss{name}": -result.scores[pattern][1] for name, pattern in named.items()}
    figures = Result(output, {**metrics, "patterns": len(result.scores)})
    figures.show(f"pattern {result.pattern}")
    print(f"attention=swa_pattern attention.pattern={result.pattern} attention.window={config.window}")
    return figures


def windowed(trained: CausalLM, window: int, where: str) -> CausalLM:
    """Returns a model of `SWA` layers on a trained model's weights, in eval mode; no layer has a window yet.

    Raises:
        ConfigError: the trained model's attention is not supported.
    """
    attention = trained.attention
    if attention.name not in SEARCHED:
        accepted = f"its attention is {attention.name}; a search starts from {', '.join(SEARCHED)}"
        raise ConfigError("checkpoint", where, accepted)
    attention = cast(GqaConfig, attention)
    pattern = "F" * trained.config.num_hidden_layers
    config = SwaPatternConfig(pattern=pattern, window=window, qk_norm=attention.qk_norm, bias=attention.bias)
    with meta_device():
        model = build_model(trained.config, config, trained.ops)
    model.load_state_dict(trained.state_dict(), assign=True)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.rebind()
    return model.eval()


def set_pattern(model: CausalLM, pattern: str) -> None:
    """Makes a model of `SWA` layers equal to one that was built with this pattern, which has one letter per layer."""
    config = replace(cast(SwaConfig, model.attention), pattern=pattern)
    layers = [*model.model.layers, *([] if model.mtp is None else [model.mtp])]
    for index, layer in enumerate(layers):
        attention = cast(SWA, cast(Block, layer).self_attn)
        attention.set_window(config.window_of(index, len(model.model.layers)))
    model.attention = config
    model.rebind()


class PatternScore:
    """Scores patterns of a model of `SWA` layers, each on the same examples.

    The first number is the score of `evaluate_long_context`; with few examples many patterns tie, so the second
    decides: minus the mean loss of the answers' tokens given their prompts, in nats.
    """

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, texts: Sequence[str], grid: Grid) -> None:
        """Creates the examples.

        Raises:
            ConfigError: a length is too short for a task.
            DataError: there is not enough text.
        """
        maker = ExampleMaker(texts, tokenizer)
        self.model, self.complete = model, engine_completer(SimpleEngine(SimpleEngineConfig(), model), tokenizer)
        self.places = [(place, grid.examples(maker, place)) for place in grid.places()]
        self.examples = [example for _, examples in self.places for example in examples]
        self.answers = [batch.to(model.device) for batch in answer_batches(self.examples, tokenizer)]

    def __call__(self, pattern: str) -> Score:
        """Returns (accuracy, minus the answers' loss)."""
        set_pattern(self.model, pattern)
        return self.accuracy(), -self.answer_loss()

    def accuracy(self) -> float:
        """Returns the overall score of the model with its current windows."""
        said = iter(self.complete(self.examples))
        cells = [
            Cell(*place, tuple(score(e, next(said)) for e in examples), mean(e.prompt_tokens for e in examples))
            for place, examples in self.places
        ]
        return LongContextReport({}, cells).overall()

    @torch.inference_mode()
    def answer_loss(self) -> float:
        """Returns the mean loss in nats of the answers' tokens."""
        total = math.fsum(negative_log_likelihood(self.model, batch) for batch in self.answers)
        return total / sum(int(batch.weights_T.sum()) for batch in self.answers)


def answer_batches(examples: Sequence[Example], tokenizer: Tokenizer) -> Iterator[TrainBatch]:
    """Yields prompts followed by their answers; only the answers' tokens have weight."""
    rows: list[tuple[list[int], int]] = []
    for example in examples:
        prompt = [tokenizer.bos_id, *tokenizer.encode(example.prompt)]
        row = [*prompt, *tokenizer.encode(f" {', '.join(example.answers)}")]
        if rows and sum(len(ids) for ids, _ in rows) + len(row) > BATCH_TOKENS:
            yield _answer_batch(rows)
            rows = []
        rows.append((row, len(prompt)))
    yield _answer_batch(rows)


def _answer_batch(rows: Sequence[tuple[list[int], int]]) -> TrainBatch:
    """Concatenates rows of (tokens, start of the answer)."""
    weights = [float(n >= start) for ids, start in rows for n in range(1, len(ids))]
    return TrainBatch(
        tokens_T=torch.tensor([t for ids, _ in rows for t in ids[:-1]]),
        targets_T=torch.tensor([t for ids, _ in rows for t in ids[1:]]),
        weights_T=torch.tensor(weights),
        batch=SequenceBatch.build([len(ids) - 1 for ids, _ in rows]),
        cursor=0,
        num_bytes=0,
    )

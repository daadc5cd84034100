"""Fits the costs of this machine's steps to steps of probe models, whose sizes are drawn once and for all."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.console.progress import say
from arcforge_core.model.causal_lm import CausalLM
from arcforge_hw.planner.configs import PROBES
from arcforge_hw.planner.counts import ModelCount, count_model
from arcforge_hw.planner.fit import Fit, Work, fit
from arcforge_hw.planner.layout import Layout
from arcforge_hw.planner.step import Load, work
from arcforge_hw.planner.steps import Clock, Served, random_model, train
from arcforge_hw.planner.training import step_work

SIZES: dict[str, tuple[int, ...]] = {
    "hidden_size": (96, 192, 320, 512),
    "num_hidden_layers": (2, 3, 5, 8),
    "intermediate_size": (256, 512, 1280),
    "moe_intermediate_size": (32, 64, 96, 160),
    "n_routed_experts": (8, 16, 32),
    "num_experts_per_tok": (2, 3, 4),
    "num_attention_heads": (2, 4, 8),
    "q_lora_rank": (64, 128, 224),
    "kv_lora_rank": (32, 96, 160),
    "vocab_size": (2048, 6144, 12288),
}
"""Sizes of probe models, each as often as any other; the first layer is dense. The rest is that of a given model."""
PROMPTS = (128, 384, 768)
STREAMS = (1, 4, 16)
PAST, TOKENS = 256, 32
"""Tokens of a prompt, and decoded tokens after it."""
BATCHES = ((1024, 128), (1024, 512))
"""Tokens of a training step, one micro-batch, and of its sequences."""
PASSES, ROUNDS = 2, 2
"""Passes over all models, far apart because other programs disturb for a while, and measurements of a step in each of
them. The fastest counts."""
Like = tuple[ModelConfig, AttentionConfig]
Measured = tuple[Work, float]
"""The work of a step, and its seconds."""


def probes(model: ModelConfig, count: int = PROBES) -> Iterator[ModelConfig]:
    """Yields configurations of probe models, the same every time for a model."""
    draws = random.Random(0)
    columns = {}
    for name, values in SIZES.items():
        columns[name] = [values[n % len(values)] for n in range(PROBES)]
        draws.shuffle(columns[name])
    for n in range(count):
        sizes: dict[str, Any] = {name: column[n] for name, column in columns.items()}
        yield replace(model, first_k_dense_replace=1, **sizes)


def fitted(
    like: Like,
    weights: str,
    dtype: torch.dtype,
    count: int = PROBES,
    rounds: int = ROUNDS,
    clock: Clock = time.perf_counter,
) -> tuple[str, dict[str, Fit]]:
    """Measures probe models and fits their steps.

    Args:
        like: a model and its attention, which the probe models have except for `SIZES`.
        weights: mode of the models' weights; with ``none`` they are trained too.
        dtype: of what stays unquantised.
        count: models, at most `PROBES`.
        rounds: measurements of a step in each pass; the fastest counts.
        clock: of wall or of processor time.

    Returns:
        The formats' name and the costs by kind of step, for `Machine.fits`.

    Raises:
        UnknownComponentError: no installed package has the engine.
    """
    passes = [_measured(like, weights, dtype, count, rounds, clock, n + 1) for n in range(PASSES)]
    formats = passes[0][0]
    steps: dict[str, list[Measured]] = {}
    for kind, first in passes[0][1].items():
        again = (found[kind] for _, found in passes[1:])
        for (amounts, took), *others in zip(first, *again, strict=True):
            steps.setdefault(kind, []).append((amounts, min(took, *(each for _, each in others))))
    return formats, {kind: fit(found) for kind, found in steps.items()}


def _measured(
    like: Like, weights: str, dtype: torch.dtype, count: int, rounds: int, clock: Clock, turn: int
) -> tuple[str, dict[str, list[Measured]]]:
    steps: dict[str, list[Measured]] = {}
    formats = ""
    for index, config in enumerate(probes(like[0], count)):
        say(f"measuring steps with weights={weights}, pass {turn} of {PASSES}: model {index + 1} of {count}")
        model = random_model(config, like[1], dtype)
        counted = count_model(config, like[1], weights, dtype)
        formats = counted.formats
        if weights == "none":
            steps.setdefault("train", []).extend(_train_steps(model, counted, rounds, clock))
        with Served(model, weights, clock) as served:
            steps.setdefault("prompt", []).extend(_prompts(served, counted, rounds))
            steps.setdefault("decode", []).extend(_decode_steps(served, counted, rounds))
    return formats, steps


def _prompts(served: Served, count: ModelCount, rounds: int) -> Iterator[Measured]:
    for length in PROMPTS:
        yield work(count, Layout(), Load(length, 0, 1, 1)), served.prompt(length, rounds)


def _decode_steps(served: Served, count: ModelCount, rounds: int) -> Iterator[Measured]:
    for streams in STREAMS:
        load = Load(streams, PAST + TOKENS / 2, streams, streams)
        yield work(count, Layout(), load), served.decode(streams, PAST, TOKENS, rounds)


def _train_steps(model: CausalLM, count: ModelCount, rounds: int, clock: Clock) -> Iterator[Measured]:
    for batch, sequence in BATCHES:
        yield (
            step_work(count, Layout(), batch, sequence, batch // sequence),
            train(model, batch, sequence, rounds, clock),
        )

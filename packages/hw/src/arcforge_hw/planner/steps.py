"""Measures whole steps of a model on this machine's processor: prompts, decoding and training.

Timed as users run them: in the engine ``paged`` and by the step of `arcforge-train`, with this machine's kernels.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.contracts.serving_engine import ServingEngine
from arcforge_core.generation.engine import build_engine
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.train.step import StepBatch, accumulate_gradients, clip_gradients

ENGINE = "paged"
CACHE_MB = 64
"""Enough for these steps; pages of a larger cache would be touched for the first time while steps are measured."""
Clock = Callable[[], float]
"""Returns seconds."""


def random_model(config: ModelConfig, attention: AttentionConfig, dtype: torch.dtype) -> CausalLM:
    """Builds a model with random weights and this machine's kernels."""
    torch.manual_seed(0)
    return build_model(config, attention, Ops(select_hardware("cpu"))).to(dtype)


class Served:
    """A model in the engine.

    Args:
        model: random or trained; the engine quantises it in place.
        weights: mode of its weights.
        clock: of wall or of processor time.

    Raises:
        UnknownComponentError: no installed package has the engine.
    """

    def __init__(self, model: CausalLM, weights: str, clock: Clock = time.perf_counter) -> None:
        config = registry().get("engine", ENGINE).load_schema()(weights=weights, cache_mb=CACHE_MB)
        self.engine, self.clock = cast(ServingEngine, build_engine(config, model.eval())), clock
        self.vocabulary, self.generator = model.config.vocab_size, torch.Generator().manual_seed(0)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()
        gc.collect()  # the engine's parts refer to each other

    def prompt(self, length: int, rounds: int) -> float:
        """Returns the seconds of a prompt and its first token, the fastest of `rounds` after another one."""
        return min([self._generate(self._prompts(1, length), 1) for _ in range(rounds + 1)][1:])

    def decode(self, streams: int, length: int, tokens: int, rounds: int) -> float:
        """Returns the seconds of a decoding step of `streams` sequences, after prompts of `length` tokens.

        The prompts are in the cache when it is measured. The result is the mean of `tokens` steps, of the fastest of
        `rounds` runs with and without them.
        """
        prompts = self._prompts(streams, length)
        self._generate(prompts, 1 + tokens)
        short, long = (min(self._generate(prompts, new) for _ in range(rounds)) for new in (1, 1 + tokens))
        return (long - short) / tokens

    def _prompts(self, streams: int, length: int) -> list[list[int]]:
        prompts: list[list[int]] = torch.randint(self.vocabulary, (streams, length), generator=self.generator).tolist()
        return prompts

    def _generate(self, prompts: list[list[int]], tokens: int) -> float:
        start = self.clock()
        self.engine.generate(prompts, SamplingParams(max_new_tokens=tokens, temperature=0.0))
        return self.clock() - start


def train(model: CausalLM, batch: int, sequence: int, rounds: int, clock: Clock = time.perf_counter) -> float:
    """Returns the seconds of a training step with AdamW and everything recomputed, in one micro-batch.

    Args:
        model: its weights are changed.
        batch, sequence: tokens of a step and of one of its sequences.
        rounds: steps, after another one; the fastest counts.
        clock: of wall or of processor time.
    """
    model.train().activation_checkpointing = True
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    generator = torch.Generator().manual_seed(0)

    layout, ones = SequenceBatch.build([sequence] * (batch // sequence)), torch.ones(batch)

    def step(inputs_T: Tensor, targets_T: Tensor) -> None:
        micro = TrainBatch(inputs_T, targets_T, ones, layout, cursor=0, num_bytes=0)
        accumulate_gradients(model, StepBatch([micro]), torch.Tensor.backward, lambda v: (v, 1.0))
        clip_gradients(model.named_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    times = []
    for _ in range(rounds + 1):
        tokens_BT = torch.randint(model.config.vocab_size, (2, batch), generator=generator)
        start = clock()
        step(*tokens_BT)
        times.append(clock() - start)
    model.activation_checkpointing = False
    return min(times[1:])

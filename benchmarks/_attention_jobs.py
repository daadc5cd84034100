"""The jobs of `attention.py`: prompts, decoding steps and training steps, of ours and of transformers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.generation.recorded import Recorded
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops import reference
from arcforge_core.ops.quant import to_records

Job = Callable[[], Tensor]


def prompt_job(model: Any, ids: Tensor) -> Job:
    """Returns what reads a prompt [1, T] into an empty cache and gives the logits of its last token."""
    tokens = ids.shape[1]

    @torch.inference_mode()
    def ours() -> Tensor:
        cache = model.new_cache([tokens])
        hidden_TD = model.hidden(ids[0], cache.batch([0], [tokens]), cache).hidden_TD
        return model.logits(hidden_TD[-1:])[0]

    @torch.inference_mode()
    def theirs() -> Tensor:
        last: Tensor = model(ids, use_cache=True, logits_to_keep=1).logits[0, -1]
        return last

    return ours if isinstance(model, CausalLM) else theirs


def our_decoding(model: CausalLM, kept: list[dict[str, Tensor]]) -> Job:
    """Returns what decodes one token after a cache of these entries, recorded, as generation and engine do."""
    tokens = len(kept[0]["latent"])
    cache = model.new_cache([tokens + 1])
    for layer, values in zip(cache.layers, kept, strict=True):
        for name, rows in layer.entries.items():
            rows[:tokens] = to_records(reference.hadamard(values[name])) if rows.dtype == torch.int8 else values[name]
    token, steps = torch.tensor([7]), Recorded(model, cache)

    @torch.inference_mode()
    def job() -> Tensor:
        cache.lengths[0] = tokens
        return model.logits(steps.hidden(token, cache.batch([0], [1])))[0]

    for _ in range(2):  # the second step of a shape records
        job()
    if model.ops.recorder is not None and None in steps.steps["layers"].steps.values():
        raise SystemExit("the decoding step cannot be recorded: generation would not replay it either")
    return job


def their_decoding(model: Any, config: ModelConfig, kept: list[dict[str, Tensor]]) -> Job:
    """Returns the same of transformers, which keeps rotated pairs apart: first all even, then all odd places."""
    from transformers import DynamicCache

    def apart(x: Tensor) -> Tensor:
        return torch.cat((x[..., 0::2], x[..., 1::2]), -1)

    rotary, token = config.qk_rope_head_dim, torch.tensor([[7]])

    @torch.inference_mode()
    def job() -> Tensor:
        cache = DynamicCache(config=model.config)
        for number, entries in enumerate(kept):
            values = {name: rows.to(model.dtype) for name, rows in entries.items()}
            latent, rope = values["latent"].split((config.kv_lora_rank, rotary), -1)
            cache.update(latent[None, None], apart(rope)[None, None], number)
            key = values["index_key"]
            cache.update_indexer(torch.cat((apart(key[:, :rotary]), key[:, rotary:]), -1)[None], number)
        start = time.perf_counter()
        logits: Tensor = model(token, past_key_values=cache, use_cache=True).logits[0, -1]
        job.seconds = time.perf_counter() - start  # type: ignore[attr-defined]  # without filling the cache
        return logits

    return job


def training_job(model: Any, ids: Tensor) -> Job:
    """Returns what computes the loss of one sequence [1, T + 1] and all gradients but the indexer's."""
    inputs, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    tokens = inputs.shape[1]
    batch = SequenceBatch.build([tokens])

    def ours() -> Tensor:
        out = model.hidden(inputs[0], batch)
        weights = torch.full((tokens,), 1.0 / tokens)
        loss: Tensor = model.linear_cross_entropy(out.hidden_TD, model.lm_head.weight, labels[0], weights)
        (loss + out.aux_losses.get("indexer", 0.0)).backward()
        model.zero_grad()
        return loss.detach()[None]

    def theirs() -> Tensor:
        loss = model(input_ids=inputs, labels=labels, shift_labels=labels, use_cache=False).loss
        loss.backward()
        model.zero_grad()
        return loss.detach()[None]

    return ours if isinstance(model, CausalLM) else theirs

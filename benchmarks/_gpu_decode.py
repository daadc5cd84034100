"""Greedy decoding of `small` and the model of a billion parameters in one static batch, by `generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from _gpu_clock import device
from _gpu_step import MODELS, TINY, Step, seconds_of

PROMPT, NEW = 512, 64


def names(quick: bool) -> list[str]:
    """Returns the items."""
    return [f"{model}, {sequences} sequences" for model in MODELS for sequences in (1, 32)]


def run(name: str, quick: bool, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Returns generated tokens per second, the prompt's time taken out."""
    model_name, count = name.split(", ")
    step = Step(TINY if quick and device() == "cpu" else MODELS[model_name], "auto")
    model, sequences = step.model.eval(), int(count.split()[0])
    if device() == "cuda":
        model = model.to(torch.bfloat16)
        model.set_compute_dtype(None)
    prompt, new = (16, 4) if quick else (PROMPT, NEW)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (sequences, prompt), generator=draw).tolist()

    def generate(tokens: int) -> float:
        return seconds_of(lambda: model.generate(ids, max_new_tokens=tokens))

    generate(2)
    first = generate(1)
    tell({"prompt_s": first})
    whole = generate(new)
    each = (whole - first) / (new - 1)
    return {"prompt_s": first, "step_s": each, "tokens_per_s": sequences / each, "prompt": prompt, "new": new}


def row(name: str, result: dict[str, Any]) -> str:
    """Returns a line of the table."""
    if "tokens_per_s" not in result:
        return f"{name:<32}{result.get('error_text', '')[:400]}"
    rate, each = result["tokens_per_s"], 1e3 * result["step_s"]
    return f"{name:<32}{rate:12,.1f} tokens/s  {each:8.2f} ms a step, prompt {1e3 * result['prompt_s']:8.1f} ms"

"""Decoding with 96 heads of 192 beside 64 heads of 256, scaled down: equal parameters, fewer products per cached token.

    python benchmarks/mla256_decode.py [--quick] [--threads N] [--json FILE]

GLM-5 (spec 1.3) takes a third of MLA's heads away and makes the others larger by a third, so that training costs the
same and decoding less: in absorbed form every head multiplies with the whole latent of every cached token. Here 12
heads of 32 + 16 stand beside 8 heads of 48 + 16, in the preset `small` with a query latent of 256 otherwise. The paper
does not say how large the values of the 96 heads were; here they are of 40 beside 64, which makes the parameters equal
and is asserted. (At the released sizes that would be 164 beside 256.)

Measured are one attention layer and the whole model, each decoding a token of 4 sequences after caches of random
entries. Before, each side's absorbed decode is held against its expanded form, and the operations that torch counts on
the reference operators against a formula. Rounds alternate; ratios are many heads over few: above 1, few are cheaper.
Both sides read the same entries, so where reading and not multiplying takes the time, the ratio is nearer to 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from _machine import describe_machine
from arcforge_attention.configs import MlaConfig
from arcforge_attention.mla import MLA
from arcforge_core.config.compose import compose
from arcforge_core.config.schema import ModelConfig
from arcforge_core.model.build import build_model
from arcforge_core.model.cache import PagedCache
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.rope import rope_tables
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware

SIDES = {
    "many": {"num_attention_heads": 12, "qk_nope_head_dim": 32, "v_head_dim": 40},
    "few": {"num_attention_heads": 8, "qk_nope_head_dim": 48, "v_head_dim": 64},
}
RELEASED = {
    "many": {"num_attention_heads": 96, "qk_nope_head_dim": 128, "v_head_dim": 164},
    "few": {"num_attention_heads": 64, "qk_nope_head_dim": 192, "v_head_dim": 256},
}
SEQUENCES, STEPS = 4, 10
Job = Callable[[], Tensor]
"""Decodes one token of every sequence; the values are the layer's outputs or the model's logits."""


def sizes() -> dict[str, ModelConfig]:
    """Returns the two models, of the preset `small` but for their heads and the query latent."""
    small = compose(["model=small", "attention=mla", "model.mtp.depths=0"]).model
    return {side: replace(small, q_lora_rank=256, **heads) for side, heads in SIDES.items()}


def decode_flops(model: ModelConfig, keys: int) -> int:
    """Returns what one layer's attention multiplies and adds for a token: all weights once, then every key's entry."""
    heads, nope, rope = model.num_attention_heads, model.qk_nope_head_dim, model.qk_rope_head_dim
    hidden, query, latent, value = model.hidden_size, model.q_lora_rank, model.kv_lora_rank, model.v_head_dim
    weights = hidden * query + query * heads * (nope + rope) + hidden * (latent + rope)
    weights += latent * heads * (nope + value) + heads * value * hidden
    return 2 * weights + 2 * heads * (2 * latent + rope) * keys


def filled_cache(specs: list[Any], keys: int) -> PagedCache:
    """Returns a cache of random entries, of which the last is written again by every step."""
    cache = PagedCache(specs, [keys] * SEQUENCES, dtype=torch.float32)
    for layer in cache.layers:
        for entries in layer.entries.values():
            entries.normal_(generator=torch.Generator().manual_seed(0))
    return cache


def layer_job(layer: MLA, model: ModelConfig, keys: int) -> Job:
    """Returns decoding in one attention layer."""
    cache = filled_cache([layer.cache_spec()], keys)
    x_TD = torch.randn(SEQUENCES, model.hidden_size, generator=torch.Generator().manual_seed(1))

    @torch.inference_mode()
    def job() -> Tensor:
        cache.lengths = [keys - 1] * SEQUENCES
        batch = cache.batch(range(SEQUENCES), [1] * SEQUENCES)
        rope = rope_tables(batch.positions_T, model.qk_rope_head_dim, model.rope_theta)
        return layer(x_TD, batch, cache.layers[0], rope=rope).out_TD

    return job


def model_job(model: CausalLM, keys: int) -> Job:
    """Returns decoding in the whole model."""
    cache = filled_cache(model.cache_spec(), keys)
    tokens_T = torch.arange(SEQUENCES)

    @torch.inference_mode()
    def job() -> Tensor:
        cache.lengths = [keys - 1] * SEQUENCES
        logits_TV: Tensor = model(tokens_T, cache.batch(range(SEQUENCES), [1] * SEQUENCES), cache).logits
        return logits_TV

    return job


def build(config: ModelConfig, form: str, ops: Ops) -> CausalLM:
    """Returns the model with the weights of seed 0."""
    torch.manual_seed(0)
    return build_model(config, MlaConfig(form=form), ops).eval()


def jobs_of(config: ModelConfig, keys: int, form: str, ops: Ops) -> dict[str, Job]:
    """Returns both jobs of one side."""
    model = build(config, form, ops)
    return {"layer": layer_job(model.model.layers[0].self_attn, config, keys), "model": model_job(model, keys)}


def parameters(model: CausalLM) -> dict[str, int]:
    """Returns the weights of one attention layer and of the whole model."""
    parts = {"layer": model.model.layers[0].self_attn, "model": model}
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}


def counted(job: Job) -> float:
    """Returns the operations per token that torch counts."""
    with FlopCounterMode(display=False) as counter:
        job()
    return counter.get_total_flops() / SEQUENCES


def check_parameters(models: dict[str, ModelConfig]) -> dict[str, int]:
    """Returns the parameters of each side, which must be as many."""
    many, few = (parameters(build(models[side], "auto", Ops(None))) for side in SIDES)
    if many != few:
        raise SystemExit(f"the two sides have {many} and {few} parameters")
    return many


def measure(models: dict[str, ModelConfig], keys: int, rounds: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns counted operations and seconds per token step, by job and side."""
    ops = Ops(select_hardware("cpu"))
    jobs = {side: jobs_of(config, keys, "auto", ops) for side, config in models.items()}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name in ("layer", "model"):
        found[name] = {}
        for side, config in models.items():
            flops = counted(jobs_of(config, keys, "absorbed", Ops(None))[name])
            if name == "layer" and flops != decode_flops(config, keys):
                raise SystemExit(f"counted {flops} operations, expected {decode_flops(config, keys)}")
            expanded = jobs_of(config, keys, "expanded", Ops(None))[name]()
            if not torch.allclose(jobs[side][name](), expanded, rtol=1e-3, atol=1e-4):
                raise SystemExit(f"{side} heads, {name}: the absorbed form computes something else than the expanded")
            found[name][side] = {"flops": flops, "seconds": []}
        for _ in range(rounds):
            for side in models:
                start = time.perf_counter()
                for _ in range(STEPS):
                    jobs[side][name]()
                found[name][side]["seconds"].append((time.perf_counter() - start) / STEPS)
    return found


def main() -> None:
    """Measures all lengths and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds and short caches instead of 9 and long ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds, lengths = (3, (512, 4096)) if options.quick else (9, (512, 4096, 16384, 32768))
    models = sizes()
    glm5 = compose(["model=glm5"]).model
    report: dict[str, Any] = {
        "benchmark": "mla256_decode", "rounds": rounds, "sequences": SEQUENCES, "sizes": SIDES,
        "machine": describe_machine(options.threads), "parameters": check_parameters(models),
        "released_sizes": RELEASED, "flops": {}, "seconds": {}, "ratios": {},
    }  # fmt: skip
    for keys in (4096, 32768, 131072, 202752):  # by the formula: nothing of that size runs here
        many, few = (decode_flops(replace(glm5, **heads), keys) for heads in RELEASED.values())
        report["ratios"][f"flops_released_layer_{keys}"] = many / few
    print(f"parameters of a layer and of the model: {report['parameters']}")
    print(f"{'':<14}{'Mflop many':>12}{'few':>8}{'ratio':>8}{'ms many':>10}{'few':>8}{'ratio':>8}")
    for keys in lengths:
        for name, sides in measure(models, keys, rounds).items():
            key = f"{name}_{keys}"
            flops = {side: found["flops"] for side, found in sides.items()}
            medians = {side: statistics.median(found["seconds"]) for side, found in sides.items()}
            ratios = {"flops": flops["many"] / flops["few"], "time": medians["many"] / medians["few"]}
            report["flops"][key], report["seconds"][key] = flops, {s: f["seconds"] for s, f in sides.items()}
            report["ratios"] |= {f"{what}_{key}": ratio for what, ratio in ratios.items()}
            print(
                f"{key:<14}{flops['many'] / 1e6:>12.2f}{flops['few'] / 1e6:>8.2f}{ratios['flops']:>8.3f}"
                f"{1e3 * medians['many']:>10.3f}{1e3 * medians['few']:>8.3f}{ratios['time']:>8.3f}",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

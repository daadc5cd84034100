"""What drafting with the MTP module gives: tokens per forward, and tokens per second with it over without it.

    python benchmarks/speculation.py [--checkpoint DIR] [--quick] [--threads N] [--drafts 3] [--batch 1 4 16]
                                     [--temperature 0] [--json FILE]

Prompts are beginnings of held-out Python files, 64 tokens each, in the checkpoint's own tokenizer; of each batch 128
tokens are generated without drafts, with all drafts (``always``) and with as many as pay (``auto``), in turns;
``equal`` is the share of sequences that were alike: kernels round by the rows of a step, so that near-ties may differ.
Tokens per forward are what a sequence got on average where drafts were checked, the token that the model gives anyway
included. Ratios are medians over rounds of tokens per second, by wall clock and by the process's time, which other
programs disturb less.

Without a checkpoint a model of the `mini` preset is trained for a minute on the standard library.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _machine import describe_machine
from arcforge_core.config.compose import compose, compose_config
from arcforge_core.config.schema import EvalConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.eval.mtp_acceptance import heldout_texts
from arcforge_core.eval.run import load_with_corpus
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

PROMPT = 64
MODES = ("off", "always", "auto")


def trained(folder: str, threads: int) -> str:
    """Trains a model for a minute or so; returns its run's folder."""
    from arcforge_core.train.run import train

    options = ["model=mini", "trainer.max_steps=150", f"trainer.threads={threads}", f"output_dir={folder}/run"]
    return str(train(compose(options)).dir)


def load(checkpoint: str, count: int) -> tuple[CausalLM, list[list[int]]]:
    """Returns the model and N beginnings of held-out text."""
    config = compose_config("eval", EvalConfig, ["suite=mtp_acceptance", f"checkpoint={checkpoint}"])
    _, model, corpus = load_with_corpus(config, 4 * PROMPT)
    texts = (text[:PROMPT] for text in heldout_texts(corpus, 4 * PROMPT) if len(text) >= PROMPT)
    return model, list(itertools.islice(texts, count))


def engines(model: CausalLM, drafts: int) -> dict[str, PagedEngine]:
    """Returns an engine for each mode; none shares prefixes, so that rounds are alike."""
    options = {"off": (0, "auto"), "always": (drafts, "always"), "auto": (drafts, "auto")}
    return {
        mode: PagedEngine(PagedEngineConfig(draft_tokens=n, drafting=drafting, prefix_cache=False), model)
        for mode, (n, drafting) in options.items()
    }


def measure(
    engine: PagedEngine, prompts: list[list[int]], params: SamplingParams
) -> tuple[list[list[int]], float, float]:
    """Returns what is generated, and tokens per second of wall clock and of processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    ids = [output.token_ids for output in engine.generate(prompts, params)]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tokens = sum(map(len, ids))
    return ids, tokens / wall, tokens / cpu


def compare(
    model: CausalLM, prompts: list[list[int]], drafts: int, rounds: int, params: SamplingParams
) -> dict[str, Any]:
    """Returns figures of one batch size; the first round warms up."""
    running = engines(model, drafts)
    rates: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    outputs: dict[str, list[list[int]]] = {}
    for number in range(rounds + 1):
        for mode, engine in running.items():
            outputs[mode], *rate = measure(engine, prompts, params)
            if number:
                rates[mode].append((rate[0], rate[1]))
    stats = {mode: engine.stats() for mode, engine in running.items()}
    for engine in running.values():
        engine.close()
    always = stats["always"]

    def ratio(mode: str, kind: int) -> float:
        return statistics.median(a[kind] / b[kind] for a, b in zip(rates[mode], rates["off"], strict=True))

    same = [ids == wanted for mode in MODES for ids, wanted in zip(outputs[mode], outputs["off"], strict=True)]
    return {
        "tokens_per_forward": always.accepted_length,
        "accepted_by_position": [count / max(always.drafts, 1) for count in always.accepted_by_position],
        "tokens_per_forward_auto": stats["auto"].accepted_length,
        "speculation_wall": ratio("auto", 0), "speculation_cpu": ratio("auto", 1),
        "always_wall": ratio("always", 0), "always_cpu": ratio("always", 1),
        "off_tokens_per_second": statistics.median(rate for rate, _ in rates["off"]),
        "equal_outputs": sum(same) / len(same),
    }  # fmt: skip


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="folder of a model with its tokenizer, or of a run")
    parser.add_argument("--quick", action="store_true", help="1 round of 64 tokens instead of 5 of 128")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rounds, tokens = (1, 64) if options.quick else (5, 128)
    report: dict[str, Any] = {
        "benchmark": "speculation", "drafts": options.drafts, "tokens": tokens, "rounds": rounds,
        "temperature": options.temperature, "machine": describe_machine(options.threads), "batch": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = options.checkpoint or trained(folder, options.threads)
        model, prompts = load(checkpoint, max(options.batch))
    params = SamplingParams(max_new_tokens=tokens, temperature=options.temperature)
    print(
        f"{'batch':>5}{'tokens/forward':>16}{'by position':>20}{'auto':>8}{'cpu':>8}{'always':>8}{'cpu':>8}{'equal':>8}"
    )
    for size in options.batch:
        found = report["batch"][size] = compare(model, prompts[:size], options.drafts, rounds, params)
        places = " ".join(f"{share:.2f}" for share in found["accepted_by_position"])
        ratios = "".join(
            f"{found[f'{name}_{kind}']:>8.2f}" for name in ("speculation", "always") for kind in ("wall", "cpu")
        )
        print(
            f"{size:>5}{found['tokens_per_forward']:>16.2f}{places:>20}{ratios}{found['equal_outputs']:>8.2f}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

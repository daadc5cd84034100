"""One optimizer step of a small DSA model on one packed row of very many tokens: time, memory, and the right loss.

    python benchmarks/long_sequence.py [--sft] [--quick] [--tokens 202752] [--threads N] [--json FILE]

The model is `tiny` with two layers and two index heads of 32, in the sparse stage: the text trains the model, the
attention trains the indexer. The row holds documents of very different lengths. `--sft` takes a step of fine-tuning
instead: the model is `tiny` with its MTP module and DSA, the documents are conversations in the chat template,
of which the assistant's turns are trained on.

The row's loss must be that of the documents one by one. Each length runs in a process of its own; memory is the
process's peak, measured over what it had before.

Memory that grows with the tokens and not with their square shows as a ratio of 2 between lengths that double.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import _path  # noqa: F401
from _machine import describe_machine
from arcforge_core.chat.load import build_chat_template
from arcforge_core.config.compose import compose
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import Example, TrainBatch
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.data.conversations.encode import LengthLimits, make_example
from arcforge_core.data.conversations.parse import parse
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.train.losses import Normalizers, micro_loss
from arcforge_core.train.step import StepBatch, accumulate_gradients, clip_gradients
from support.models import split, train_batch

TOKENS = 202_752
SHARES = (0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Of the row, document by document; the rest is cut into documents of a thousand tokens."""
LOSS_TOLERANCE = 1e-5


def document_lengths(tokens: int) -> list[int]:
    """Returns the lengths of a row's documents."""
    lengths = [int(share * tokens) for share in SHARES]
    rest = tokens - sum(lengths)
    return [*lengths, *[1000] * (rest // 1000), *([rest % 1000] if rest % 1000 else [])]


PRETRAINING = (
    "attention=dsa", "attention.indexer_training=sparse", "attention.recall_queries=8", "model.num_hidden_layers=2",
    "model.index_n_heads=2", "model.index_head_dim=32", "model.mtp.depths=0",
)  # fmt: skip
SFT = ("stage=sft", "attention=dsa")


def build(checkpointing: bool, sft: bool) -> tuple[CausalLM, torch.optim.Optimizer]:
    """Returns the model and its optimizer."""
    config = compose(["model=tiny", *(SFT if sft else PRETRAINING), f"model.max_position_embeddings={TOKENS}"])
    torch.manual_seed(0)
    model = build_model(config.model, config.attention, Ops(select_hardware("auto")))
    model.activation_checkpointing = checkpointing
    return model, registry().get("optimizer", config.optimizer.name).load()(config.optimizer, collect_roles(model))


def conversation(tokens: int) -> Example:
    """Returns a conversation with tools of at least `tokens` tokens."""
    messages: list[dict[str, Any]] = []
    for turn in range(1 + tokens // 60):  # a turn has more
        asked = {"name": "add", "arguments": {"first": turn, "second": 7 * turn}}
        messages += [
            {"role": "user", "content": f"{turn} + {7 * turn}?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": asked}]},
            {"role": "tool", "content": f"{8 * turn}"},
            {"role": "assistant", "content": f"The sum of {turn} and {7 * turn} is {8 * turn}."},
        ]
    parsed = parse({"messages": messages}, "chat", "off", mask_errors=True)
    template = build_chat_template(small_tokenizer())
    return make_example(parsed, template, LengthLimits(max_tokens=1 << 40, min_trained=1, cut=False))


def conversations(lengths: Sequence[int]) -> TrainBatch:
    """Returns a row of conversations, each cut to its length; what the assistant did not say has no loss."""
    example = conversation(max(lengths) + 1)
    ids_T = torch.tensor(example.ids)
    trained_T = torch.tensor(example.trained, dtype=torch.float32)
    return TrainBatch(
        tokens_T=torch.cat([ids_T[:length] for length in lengths]),
        targets_T=torch.cat([ids_T[1 : length + 1] for length in lengths]),
        weights_T=torch.cat([trained_T[1 : length + 1] for length in lengths]),
        batch=SequenceBatch.build(list(lengths)),
        cursor=1,
        num_bytes=example.num_bytes,
    )


def make_row(lengths: Sequence[int], model: CausalLM, sft: bool) -> TrainBatch:
    """Returns a row of documents of these lengths."""
    return conversations(lengths) if sft else train_batch(lengths, model.config.vocab_size)


@torch.no_grad()
def loss_of_single_documents(model: CausalLM, tokens: int, sft: bool) -> float:
    """Returns the mean loss when no document has neighbours."""
    lengths = document_lengths(tokens)
    whole = make_row(lengths, model, sft)
    norm = Normalizers.of([whole], [None], 0, lambda sums: (sums, 1.0))
    return sum(float(micro_loss(model, one, None, norm).parts["loss"]) for one in split(whole, range(len(lengths))))


def one_step(tokens: int, compare: bool, sft: bool) -> dict[str, float]:
    """Runs the step in this process; returns seconds, peak bytes above the start, and losses."""
    model, optimizer = build(checkpointing=True, sft=sft)
    small = make_row([64, 40], model, sft)  # libraries and kernels are loaded before the clock starts
    accumulate_gradients(model, StepBatch([small]), lambda loss: loss.backward(), lambda sums: (sums, 1.0))
    optimizer.zero_grad()
    batch = make_row(document_lengths(tokens), model, sft)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    start, used = time.perf_counter(), time.process_time()
    result = accumulate_gradients(model, StepBatch([batch]), lambda loss: loss.backward(), lambda sums: (sums, 1.0))
    clip_gradients(model.named_parameters(), 1.0)
    optimizer.step()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    alone = loss_of_single_documents(build(False, sft)[0], tokens, sft) if compare else float("nan")
    return {
        "tokens": tokens, "seconds": seconds, "cpu_seconds": cpu_seconds,
        "process_peak_gib": peak / 2**30, "step_gib": (peak - before) / 2**30,
        "trained_tokens": int(batch.weights_T.count_nonzero()), "mtp_tokens": result.mtp_tokens,
        "loss_of_single_documents": alone, **{name: float(value) for name, value in result.losses.items()},
    }  # fmt: skip


def in_own_process(tokens: int, threads: int, compare: bool, sft: bool) -> dict[str, float]:
    """Returns `one_step` of a fresh process."""
    flags = [*["--compare"] * compare, *["--sft"] * sft]
    command = [sys.executable, __file__, "--one", str(tokens), "--threads", str(threads), *flags]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def main() -> None:
    """Runs doubling lengths up to the one that is asked for, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an eighth of the tokens")
    parser.add_argument("--sft", action="store_true", help="fine-tuning on conversations with masks")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--compare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(one_step(options.one, options.compare, options.sft)))
        return
    longest = options.tokens // 8 if options.quick else options.tokens
    name = "long_sequence, sft" if options.sft else "long_sequence"
    machine = describe_machine(options.threads)
    report: dict[str, Any] = {"benchmark": name, "machine": machine, "steps": [], "ratios": {}}
    for tokens in (longest // 4, longest // 2, longest):
        report["steps"].append(in_own_process(tokens, options.threads, tokens == longest, options.sft))
        print(json.dumps(report["steps"][-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))
    half, whole = report["steps"][-2:]
    report["ratios"] = {
        "memory_of_twice_the_tokens": whole["step_gib"] / half["step_gib"],
        "time_of_twice_the_tokens": whole["seconds"] / half["seconds"],
        "loss_difference": abs(whole["loss"] - whole["loss_of_single_documents"]),
    }
    for name, value in report["ratios"].items():
        print(f"{name:30} {value:.3g}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    if not report["ratios"]["loss_difference"] <= LOSS_TOLERANCE:
        raise SystemExit(
            f"the packed row's loss is not that of its documents: {report['ratios']['loss_difference']:.1e}"
        )


if __name__ == "__main__":
    main()

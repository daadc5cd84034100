"""Times a step of reinforcement learning beside TRL's GRPO trainer: same model, tasks, lengths and algorithm.

    python benchmarks/rl_vs_trl.py [--quick] [--threads N] [--groups N] [--tokens N] [--json FILE]

A step samples groups of 8 rollouts, scores them, trains on them and uses the new weights for the next. Ours is
`arcforge-rl algorithm=grpo`; the peer is `trl.GRPOTrainer` with transformers' generation and the fastest of its
settings, found by a sweep over batch splits and precisions. The model is a Llama of random weights that both sides load
from one folder; before anything is timed their log-probabilities of the same tokens must agree. Rewards are all 0: what
a reward is worth changes no time. Rounds alternate between the sides, each in a run of its own, whose first step is
left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from _machine import describe_machine
from arcforge_core import load_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.configs import CopyConfig
from arcforge_core.data.tokenizer import train_tokenizer
from arcforge_core.environments.copy import CopyEnvironment
from arcforge_core.ops.compat import fast_bf16

GROUP, LETTERS, VOCABULARY = 8, 24, 2048
SIZES = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6}


@dataclass(frozen=True)
class Peer:
    """Settings of TRL: micro-batches of a step, and the precision of training."""

    accumulate: int
    precision: str

    def __str__(self) -> str:
        return f"{self.accumulate} micro-batches, {self.precision}"


@dataclass(frozen=True)
class Speed:
    """What a run came to."""

    samples_per_s: float
    tokens_per_s: float


def make_model(folder: Path) -> None:
    """Writes a Llama that sampling never ends early, with a tokenizer."""
    import transformers

    texts = [Path(module.__file__).read_text() for module in (argparse, json, logging, tempfile, statistics)]
    tokenizer = train_tokenizer(texts, VOCABULARY)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=512,
        eos_token_id=tokenizer.eos_id, bos_token_id=tokenizer.bos_id, **SIZES,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)


def check_agreement(folder: Path) -> float:
    """Returns the largest difference of log-probabilities; ends the benchmark where it is large."""
    import transformers

    ids = torch.randint(300, VOCABULARY, (4, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = load_pretrained(folder, torch.float32)(ids).logits.log_softmax(-1)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
    difference = float((ours - theirs.log_softmax(-1)).abs().max())
    if difference > 1e-4:
        raise SystemExit(f"the models differ by {difference:.2g} nats: there is nothing to compare")
    return difference


def ours(folder: Path, precision: str, options: argparse.Namespace, steps: int) -> Speed:
    """Runs `arcforge-rl`."""
    from arcforge_rl.configs_learning import RlConfig
    from arcforge_rl.learning.run import run

    with tempfile.TemporaryDirectory() as output:
        config = compose_config(
            "rl",
            RlConfig,
            [
                f"init={folder}", "environment=copy", f"environment.letters={LETTERS}", "algorithm=grpo",
                f"rollout.groups={options.groups}", f"rollout.group_size={GROUP}", "rollout.drop_equal=false",
                f"rollout.max_new_tokens={options.tokens}", "evaluation.tasks=0", f"trainer.max_steps={steps}",
                f"trainer.threads={options.threads}", f"trainer.precision={precision}", "trainer.shown=0",
                "optimizer.lr=1e-6", "trainer.checkpoint_every=1000", f"output_dir={output}",
            ],
        )  # fmt: skip
        rows = (run(config).dir / "metrics.csv").read_text().splitlines()
    names, *rest = [row.split(",") for row in rows]
    clock = [float(row[names.index("seconds")]) for row in rest]
    sampled = [int(row[names.index("sampled_tokens")]) for row in rest]
    return speed([b - a for a, b in itertools.pairwise(clock)], statistics.mean(sampled), options)


def theirs(folder: Path, peer: Peer, options: argparse.Namespace, steps: int) -> Speed:
    """Runs TRL's trainer."""
    import datasets
    import transformers
    import trl

    class Clock(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.times.append(time.perf_counter())

    lengths: list[int] = []

    def nothing(completion_ids: list[list[int]], **rest: Any) -> list[float]:
        lengths.append(sum(map(len, completion_ids)))
        return [0.0] * len(completion_ids)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    environment = CopyEnvironment(CopyConfig(letters=LETTERS))
    begin = tokenizer.convert_ids_to_tokens(tokenizer.bos_token_id or tokenizer.eos_token_id)
    prompts = [{"prompt": begin + environment.task(n).prompt} for n in range(options.groups * (steps + 1))]
    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        args = trl.GRPOConfig(
            output_dir=output, use_cpu=True, report_to="none", save_strategy="no", logging_steps=10**6,
            per_device_train_batch_size=options.groups * GROUP // peer.accumulate,
            gradient_accumulation_steps=peer.accumulate, num_generations=GROUP, max_steps=steps,
            max_completion_length=options.tokens, temperature=1.0, beta=0.0, learning_rate=1e-6, loss_type="grpo",
            gradient_checkpointing=False, bf16=peer.precision == "autocast", disable_tqdm=True,
        )  # fmt: skip
        dtype = torch.bfloat16 if peer.precision == "bf16" else torch.float32
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        trainer = trl.GRPOTrainer(
            model, reward_funcs=nothing, args=args, train_dataset=datasets.Dataset.from_list(prompts),
            processing_class=tokenizer, callbacks=[clock],
        )  # fmt: skip
        trainer.train()
    return speed([b - a for a, b in itertools.pairwise(clock.times)], sum(lengths) / steps, options)


def speed(seconds: list[float], tokens: float, options: argparse.Namespace) -> Speed:
    """Returns the rates at the median step."""
    median = statistics.median(seconds)
    return Speed(options.groups * GROUP / median, tokens / median)


def sweep(folder: Path, options: argparse.Namespace) -> Peer:
    """Returns TRL's fastest settings."""
    precisions = ("fp32", "autocast", "bf16") if fast_bf16("cpu") else ("fp32",)
    found = {}
    for peer in (Peer(*of) for of in itertools.product((1, 4), precisions)):
        found[peer] = theirs(folder, peer, options, 3).samples_per_s
        print(f"  TRL, {peer}: {found[peer]:.1f} samples/s", flush=True)
    return max(found, key=lambda peer: found[peer])


def main() -> None:
    """Sweeps, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 4 steps instead of 5 of 8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--groups", type=int, default=8, help="groups of 8 rollouts in a step")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a rollout")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in ("transformers", "trl", "datasets", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    rounds, steps = (3, 4) if options.quick else (5, 8)
    report: dict[str, Any] = {"benchmark": "rl_vs_trl", "machine": describe_machine(options.threads)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        report["logprob_difference"] = check_agreement(folder)
        peer = sweep(folder, options)
        report["settings"] = str(peer)
        runs: dict[str, list[Speed]] = {"ours": [], "ours_bf16": [], "trl": []}
        for _ in range(rounds):
            runs["trl"].append(theirs(folder, peer, options, steps))
            runs["ours"].append(ours(folder, "fp32", options, steps))
            if fast_bf16("cpu"):
                runs["ours_bf16"].append(ours(folder, "bf16", options, steps))
    medians = {
        side: {
            field: statistics.median(getattr(of, field) for of in found) for field in ("samples_per_s", "tokens_per_s")
        }
        for side, found in runs.items()
        if found
    }
    report |= {"medians": medians, "rounds": {side: [vars(of) for of in found] for side, found in runs.items()}}
    report["ratios"] = {
        f"{field}{side.removeprefix('ours')}": of[field] / medians["trl"][field]
        for side, of in medians.items()
        if side != "trl"
        for field in of
    }
    print(json.dumps({"settings": str(peer), "medians": medians, "ratios": report["ratios"]}, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

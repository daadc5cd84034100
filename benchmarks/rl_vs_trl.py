"""Times a step of reinforcement learning beside TRL's GRPO trainer: same model, tasks, lengths and algorithm.

    python benchmarks/rl_vs_trl.py [--quick] [--cores N] [--groups 4] [--tokens 256] [--json FILE]
    python benchmarks/rl_vs_trl.py --what reward [--quick] ...

With ``--what reward`` a step of a reward model, on 32 pairs whose replies have 4 to about `--tokens` tokens, compared
with `trl.RewardTrainer`; a sample is a pair. That both have one loss and one gradient is a test of the suite.

A step samples groups of 8 rollouts, scores them, trains on them and uses the new weights for the next. Ours is
`arcforge-rl algorithm=grpo`; the peer is `trl.GRPOTrainer` with transformers' generation. Both run at the fastest of
their settings, found by a sweep over precisions (ours may train in fp32 and sample in bf16; TRL samples with the model
that it trains), TRL's attention and batch splits, `torch.compile`, and one process of N threads or N of one. With
`--quick` nothing is compiled, and TRL's attention and splits are tried in one precision alone, that of the faster large
products. The model is a Llama of random weights that both sides load from one folder; before anything is timed their
log-probabilities of the same tokens must agree. Rewards are all 0: what a reward is worth changes no time. Rounds
alternate between the sides, each in processes of its own, whose first step is left out.

`ratios`: ours at our best over TRL at its best; with `_fp32` ours at float32, whatever TRL is at.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import _reward_rows
from _machine import describe_machine
from _peers import ATTENTION, Peer, Swept, sweep
from arcforge_core import load_pretrained
from arcforge_core.config.compose import compose_config
from arcforge_core.configs import CopyConfig
from arcforge_core.contracts.chat import Message
from arcforge_core.episodes.copy import CopyEnvironment
from arcforge_core.ops.compat import fast_bf16, has_bf16
from arcforge_core.tokenizer.tokenizer import Tokenizer, train_tokenizer

GROUP, LETTERS, VOCABULARY = 8, 24, 2048
SIZES = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6}


@dataclass(frozen=True)
class Settings:
    """How a side runs.

    Attributes:
        side: ``ours`` or ``trl``.
        precision: of training, and of sampling unless that has one of its own.
        processes: that share a step.
        accumulate: micro-batches of a step; ours are packed by tokens.
        attention, compiled: of transformers, see `_peers.Peer`.
        sampling: precision of our engine; empty is that of training. TRL samples with the model that it trains.
    """

    side: str
    precision: str
    processes: int = 1
    accumulate: int = 1
    attention: str = "sdpa"
    compiled: bool = False
    sampling: str = ""

    def __str__(self) -> str:
        theirs = f", {self.accumulate} micro-batches, {self.attention}{', compile' * self.compiled}"
        split = theirs if self.side == "trl" else f", sampling in {self.sampling}" * bool(self.sampling)
        return f"{self.side}, {self.precision}, {self.processes} process(es){split}"


@dataclass(frozen=True)
class Speed:
    """What a run came to."""

    samples_per_s: float
    tokens_per_s: float


def make_model(folder: Path) -> None:
    """Writes a Llama that seldom ends a reply, with a tokenizer."""
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


def ours(folder: Path, settings: Settings, options: argparse.Namespace, steps: int) -> Speed:
    """Runs `arcforge-rl` in this process, one of several perhaps."""
    from arcforge_rl.configs.learning import RlConfig
    from arcforge_rl.trainer.run import run

    config = compose_config(
        "rl",
        RlConfig,
        [
            f"init={folder}", "environment=copy", f"environment.letters={LETTERS}", "algorithm=grpo",
            f"rollout.groups={options.groups}", f"rollout.group_size={GROUP}", "rollout.drop_equal=false",
            f"rollout.max_new_tokens={options.tokens}", "evaluation.tasks=0", f"trainer.max_steps={steps}",
            f"trainer.threads={options.cores // settings.processes}", f"trainer.precision={settings.precision}",
            "trainer.shown=0", f"rollout.precision={settings.sampling or 'null'}",
            "optimizer.lr=1e-6", "trainer.checkpoint_every=1000", f"output_dir={folder / 'runs'}",
        ],
    )  # fmt: skip
    run(config)
    if os.environ.get("RANK", "0") != "0":  # the first process writes the table, and reads it
        return Speed(math.nan, math.nan)
    metrics = folder / "runs/latest/metrics.csv"
    rows = metrics.read_text().splitlines()
    names, *rest = [row.split(",") for row in rows]
    clock = [float(row[names.index("seconds")]) for row in rest]
    sampled = [int(row[names.index("sampled_tokens")]) for row in rest]
    return speed([b - a for a, b in itertools.pairwise(clock)], statistics.mean(sampled), options)


def theirs(folder: Path, settings: Settings, options: argparse.Namespace, steps: int) -> Speed:
    """Runs TRL's trainer, likewise."""
    import datasets
    import transformers
    import trl

    from arcforge_core.episodes.agent import build_dialogue

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
    dialogue = build_dialogue(Tokenizer.load(folder), "off")  # the same prompts, ended by the same tokens
    tasks = [environment.task(n) for n in range(options.groups * (steps + 1))]
    rendered = [list(dialogue.prompt([Message("user", task.prompt)], ()).ids) for task in tasks]
    prompts = [{"prompt": tokenizer.decode(ids)} for ids in rendered]
    again = [tokenizer.encode(row["prompt"], add_special_tokens=False) for row in prompts]
    if again != rendered:
        raise SystemExit("TRL would not see the prompts that ours sees")
    clock = Clock()
    args = trl.GRPOConfig(
        output_dir=folder / "trl", use_cpu=True, report_to="none", save_strategy="no", logging_steps=10**6,
        per_device_train_batch_size=options.groups * GROUP // (settings.accumulate * settings.processes),
        gradient_accumulation_steps=settings.accumulate, num_generations=GROUP, max_steps=steps,
        max_completion_length=options.tokens, temperature=1.0, beta=0.0, learning_rate=1e-6, loss_type="grpo",
        gradient_checkpointing=False, bf16=settings.precision == "autocast", disable_tqdm=True,
        torch_compile=settings.compiled,
    )  # fmt: skip
    model = Peer(settings.attention, dtype=settings.precision).load(folder)
    model.generation_config.eos_token_id = list(dialogue.stop_ids)
    trainer = trl.GRPOTrainer(
        model, reward_funcs=nothing, args=args, train_dataset=datasets.Dataset.from_list(prompts),
        processing_class=tokenizer, callbacks=[clock],
    )  # fmt: skip
    trainer.train()
    sampled = sum(lengths) * settings.processes
    return speed([b - a for a, b in itertools.pairwise(clock.times)], sampled / steps, options)


def reward(folder: Path, settings: Settings, options: argparse.Namespace, steps: int) -> Speed:
    """Runs either side's training of a reward model."""
    if settings.side == "ours":
        threads = options.cores // settings.processes
        seconds, tokens = _reward_rows.ours(folder, settings.precision, threads, options.tokens, steps)
    else:
        peer = Peer(settings.attention, dtype=settings.precision, compiled=settings.compiled)
        seconds, tokens = _reward_rows.theirs(
            folder, peer, settings.processes, settings.accumulate, options.tokens, steps
        )
    median = statistics.median(seconds)
    return Speed(_reward_rows.PAIRS / median, tokens / median)


def speed(seconds: list[float], tokens: float, options: argparse.Namespace) -> Speed:
    """Returns the rates at the median step."""
    median = statistics.median(seconds)
    return Speed(options.groups * GROUP / median, tokens / median)


def measure(folder: Path, settings: Settings, options: argparse.Namespace, steps: int) -> Speed:
    """Runs a side in processes of its own."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={settings.processes}"]
    threads = options.cores // settings.processes
    sizes = [f"--{name}={getattr(options, name)}" for name in ("cores", "groups", "tokens", "what")]
    work = [f"--folder={folder}", f"--steps={steps}", f"--settings={json.dumps(asdict(settings))}"]
    done = subprocess.run(
        [sys.executable, *(launcher if settings.processes > 1 else []), __file__, *sizes, *work],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{settings}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return Speed(**json.loads((folder / "speed.json").read_text()))


def work(options: argparse.Namespace) -> None:
    """Is one of the processes of a side; the first one writes how fast it was."""
    for name in ("transformers", "trl", "datasets", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    settings = Settings(**json.loads(options.settings))
    torch.set_num_threads(options.cores // settings.processes)
    side = reward if options.what == "reward" else ours if settings.side == "ours" else theirs
    found = side(options.folder, settings, options, options.steps)
    if os.environ.get("RANK", "0") == "0":
        (options.folder / "speed.json").write_text(json.dumps(asdict(found)))


def fastest(
    folder: Path, candidates: Sequence[Settings], options: argparse.Namespace, further: Sequence[Settings] = ()
) -> Swept[Settings]:
    """Returns the sweep over settings; a run's first step is left out, so each is measured once."""

    def prepare(settings: Settings) -> Callable[[], float]:
        return lambda: 1 / measure(folder, settings, options, 2 if options.quick else 3).samples_per_s

    return sweep(candidates, prepare, lambda best: further, repeats=0)


def precisions_here() -> tuple[str, ...]:
    """Returns the precisions to try, the one of the faster large products first."""
    if not has_bf16():
        return ("fp32",)
    return ("bf16", "autocast", "fp32") if fast_bf16("cpu") else ("fp32", "bf16", "autocast")


def alone(precisions: Sequence[str], quick: bool) -> list[Settings]:
    """Returns TRL's settings in one process; quick, those of the first precision and the usual one of each other."""
    return [
        Settings("trl", precision, 1, accumulate, attention)
        for precision in precisions
        for attention in ATTENTION
        for accumulate in (1, 4)
        if not quick or precision == precisions[0] or (attention, accumulate) == (ATTENTION[0], 1)
    ]


def main() -> None:
    """Sweeps, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 4 steps instead of 5 of 8")
    parser.add_argument("--what", choices=("grpo", "reward"), default="grpo")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--groups", type=int, default=4, help="groups of 8 rollouts in a step")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a rollout, or of a reply at most")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--settings", help=argparse.SUPPRESS)  # of a process that measures
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if options.settings:
        work(options)
        return
    rounds, steps = (3, 4) if options.quick else (5, 8)
    precisions, several = precisions_here(), (1, options.cores) if options.cores > 1 else (1,)
    report: dict[str, Any] = {
        "benchmark": "rl_vs_trl",
        "what": options.what,
        "machine": describe_machine(options.cores),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        report["logprob_difference"] = check_agreement(folder)
        swept = [fastest(folder, alone(precisions, options.quick), options)]
        peer = swept[0].best
        further = [replace(peer, processes=processes) for processes in several if processes > 1]
        further += [] if options.quick else [replace(each, compiled=True) for each in (peer, *further)]
        if further:
            swept.append(fastest(folder, [peer, *further], options))
            peer = swept[-1].best
        swept.append(fastest(folder, [Settings("ours", "fp32", processes) for processes in several], options))
        best = fp32 = swept[-1].best
        if "bf16" in precisions:
            narrow = [] if options.what == "reward" else [replace(fp32, sampling="bf16")]
            swept.append(fastest(folder, [fp32, *narrow, *(Settings("ours", "bf16", n) for n in several)], options))
            best = swept[-1].best
        report["sweeps"] = [found.tried for found in swept]
        sides = {"trl": peer, "ours": best, **({"ours_fp32": fp32} if best != fp32 else {})}
        report["settings"] = {side: str(settings) for side, settings in sides.items()}
        runs: dict[str, list[Speed]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, settings in sides.items():
                runs[side].append(measure(folder, settings, options, steps))
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
    print(json.dumps({"settings": report["settings"], "medians": medians, "ratios": report["ratios"]}, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

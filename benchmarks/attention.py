"""Sparse attention on the clock: prompts, decoding and training beside transformers, dense attention and the floor.

    python benchmarks/attention.py [--quick] [--only prefill decode train long] [--checkpoint DIR] [--rounds N]
                                   [--threads N] [--json FILE] [--plot FILE]

The model is the preset `small` (23M parameters, top-k 256) with random weights, the same on both sides. Each part runs
transformers' `glm_moe_dsa` with the fastest of its settings, found by a sweep over attention, experts, dtype and, not
with `--quick`, `torch.compile`; settings whose results differ from ours are left out. Caches are filled with random
entries, the same on both sides, because transformers' own prompt does not fit into memory above some 8,192 tokens.
`long`, a prompt of 131,072 tokens of ours alone, takes minutes and runs only when it is asked for.

`--checkpoint` takes a trained DSA model instead, reads Python's own library as text and fills the caches with what the
model makes of it: random scores have no ties and no structure, trained ones do.

Floors count the products of a step, taken at the measured rate of matrix products, and the bytes of weights and cache
that it must read, taken at the measured bandwidth; the larger of the two is the floor. Rates are those of this run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _attention_jobs import Job, our_decoding, prompt_job, their_decoding, training_job
from _floors import work
from _machine import describe_machine, peak_growth, read_bandwidth
from _peers import EXPERTS, Peer, Swept, Unfit, peers, sweep
from _rounds import add, in_turns, medians, ratio, show, timed
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.checkpoint.pretrained import find_checkpoint, open_checkpoint
from arcforge_core.checkpoint.start import start_from
from arcforge_core.config.compose import compose
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.throughput import matmul_rate

PROMPT, TRAIN, LONG, TRIAL = 8192, 4096, 131_072, 1024
CACHES = (2048, 32_768, 65_536)
LIMIT = 1 << 18
DTYPES = ("fp32", "autocast", "bf16")
AGREEMENT = 2e-2
"""Relative difference of logits: sums in another order let a few keys at the border of top-k change places."""
HOPELESS = 2.5


class Subject:
    """What is measured: `small` with random weights, or a trained checkpoint."""

    def __init__(self, checkpoint: str | None) -> None:
        self.checkpoint = checkpoint

    def model(self, attention: str, *options: str) -> CausalLM:
        """Returns the model; equal weights for every attention but the indexer's, which only DSA has."""
        config = compose(["model=small", f"attention={attention}", *(f"attention.{option}" for option in options)])
        sizes = config.model if self.checkpoint is None else open_checkpoint(find_checkpoint(self.checkpoint)).config
        sizes = replace(sizes, mtp=replace(sizes.mtp, depths=0), max_position_embeddings=LIMIT)
        torch.manual_seed(0)
        model = build_model(sizes, config.attention, Ops(select_hardware("cpu")))
        if self.checkpoint is not None:
            start_from(model, self.checkpoint)
        return model

    def tokens(self, model: CausalLM, count: int, seed: int) -> Tensor:
        """Returns [1, count] random tokens, or those of a text."""
        if self.checkpoint is None:
            draw = torch.Generator().manual_seed(seed)
            return torch.randint(model.config.vocab_size, (1, count), generator=draw)
        tokenizer, found = Tokenizer.load(find_checkpoint(self.checkpoint)), []
        for path in sorted(Path(statistics.__file__).parent.glob("*.py")):
            found += tokenizer.encode(path.read_text(encoding="utf-8"))
            if len(found) >= count:
                return torch.tensor([found[:count]])
        raise SystemExit(f"the library has {len(found)} tokens only, {count} are needed")

    def entries(self, model: CausalLM, tokens: int) -> list[dict[str, Tensor]]:
        """Returns each layer's cached values, latent and rotated part together: random ones, or those of a text."""
        if self.checkpoint is not None:
            ids, cache = self.tokens(model, tokens, 2)[0], model.new_cache([tokens])
            with torch.inference_mode():
                for part in ids.split(PROMPT):
                    model.hidden(part, cache.batch([0], [len(part)]), cache)
            return [{name: rows[:tokens] for name, rows in layer.entries.items()} for layer in cache.layers]
        config, draw = model.config, torch.Generator().manual_seed(2)
        width = config.kv_lora_rank + config.qk_rope_head_dim
        return [
            {
                "latent": torch.randn(tokens, width, generator=draw),
                "index_key": torch.randn(tokens, config.index_head_dim, generator=draw),
            }
            for _ in range(config.num_hidden_layers)
        ]


def fastest_peer(
    folder: str, prepare: Callable[[Any], Job], ours: Job, quick: bool, trial: Callable[[Any], Job] | None = None
) -> tuple[Swept[Peer], Job]:
    """Returns the sweep over transformers' settings that agree with ours, and the job of the fastest.

    Args:
        folder: exported weights.
        prepare: makes the job of a loaded model.
        ours: our job, with which results must agree.
        quick: whether to leave out other dtypes and compiling.
        trial: makes a shorter job; settings that take `HOPELESS` times the fastest there are not tried on the whole.
    """
    with ties_to_the_lower():
        expected = ours().double()
    trials: list[float] = []

    def measured(peer: Peer) -> Callable[[], float]:
        model = peer.load(folder)
        if trial is not None and not peer.compiled:
            seconds = in_turns({"trial": casting(trial(model), peer)}, 1)["trial"][0]
            trials.append(seconds)
            if seconds > HOPELESS * min(trials):
                raise Unfit(f"{seconds / min(trials):.1f} times as long as the fastest on {TRIAL} tokens")
        job = casting(prepare(model), peer)
        check_agreement(job, expected)
        return lambda: timed(job)

    def further(best: Peer) -> list[Peer]:
        return [] if quick else [replace(best, compiled=True)]

    swept = sweep(peers(DTYPES[:1] if quick else DTYPES, EXPERTS), measured, further, repeats=0)
    return swept, casting(prepare(swept.best.load(folder)), swept.best)


def casting(job: Job, peer: Peer) -> Job:
    """Returns the job in the setting's autocast, with the attribute `seconds` of the job where it has one."""

    def within() -> Tensor:
        with peer.casting():
            found = job()
        if hasattr(job, "seconds"):
            within.seconds = job.seconds  # type: ignore[attr-defined]
        return found

    return within


def decoding_rounds(jobs: dict[str, Job], rounds: int) -> dict[str, list[float]]:
    """Returns each job's seconds by round: the median of ten steps, which follow each other as in generation."""
    found = [
        {name: statistics.median(in_turns({name: job}, 10)[name]) for name, job in jobs.items()} for _ in range(rounds)
    ]
    return {name: [seconds[name] for seconds in found] for name in jobs}


@contextmanager
def ties_to_the_lower() -> Iterator[None]:
    """Makes `Tensor.topk` take the lower index of equals: transformers' selection has no rule, and zeros are common."""
    original = torch.Tensor.topk

    def topk(x: Tensor, k: int, dim: int = -1) -> Any:
        values, indices = x.sort(dim=dim, descending=True, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    torch.Tensor.topk = topk  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.topk = original  # type: ignore[method-assign]


def check_agreement(theirs: Job, expected: Tensor) -> float:
    """Returns the relative difference of a job's result from ours.

    Raises:
        Unfit: it is not small.
    """
    with ties_to_the_lower():
        found = theirs().double()
    difference = float((expected - found).norm() / found.norm())
    if not difference < AGREEMENT:
        raise Unfit(f"the two sides differ by {difference:.1e}")
    return difference


def agree(ours: Job, theirs: Job) -> float:
    """Returns the relative difference of two jobs' results, which must be small."""
    with ties_to_the_lower():
        expected = ours().double()
    return check_agreement(theirs, expected)


def alone(subject: Subject, peer: Peer | None, folder: str, tokens: int, threads: int) -> dict[str, float]:
    """Reads a prompt in a process of its own: seconds, and the megabytes that this adds to it; None: ours."""
    side = json.dumps(None if peer is None else asdict(replace(peer, compiled=False)))
    command = [sys.executable, __file__, "--threads", str(threads), "--alone", side, folder, str(tokens)]
    command += ["--checkpoint", subject.checkpoint] if subject.checkpoint else []
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"prompt of {peer or 'ours'}: {result.stderr}")
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def read_alone(subject: Subject, side: str, folder: str, tokens: int) -> dict[str, float]:
    """What that process does."""
    model = subject.model("dsa").eval()
    fields, ids = json.loads(side), subject.tokens(model, tokens, 1)
    peer = None if fields is None else Peer(**fields)
    job = prompt_job(model, ids) if peer is None else casting(prompt_job(peer.load(folder), ids), peer)
    start = time.perf_counter()
    added = peak_growth(job)
    return {"seconds": time.perf_counter() - start, "peak_memory_mb": added}


def main() -> None:
    """Measures what is asked for and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one round instead of five; the peer in fp32 alone, not compiled"
    )
    parser.add_argument("--rounds", type=int, help="whole rounds, over which ratios have a range")
    parser.add_argument(
        "--only", nargs="+", choices=("prefill", "decode", "train", "long"), default=["prefill", "decode", "train"]
    )
    parser.add_argument("--checkpoint", metavar="DIR", help="a trained DSA model, or the run of one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="an image, a panel for each part")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    subject = Subject(options.checkpoint)
    if options.alone:
        side, folder, tokens = options.alone
        print(json.dumps(read_alone(subject, side, folder, int(tokens))))
        return
    rounds = options.rounds or (1 if options.quick else 5)
    report: dict[str, Any] = {"benchmark": "attention", "machine": describe_machine(options.threads), "ratios": {}}
    report["checkpoint"] = options.checkpoint
    ours = subject.model("dsa").eval()
    with tempfile.TemporaryDirectory() as folder:
        export_hf(ours, folder)
        for part in options.only:
            report[part], ratios = PARTS[part](subject, ours, rounds, folder, options)
            add(report, ratios)
            print(json.dumps(report[part], indent=2), flush=True)
            if options.json:
                options.json.write_text(json.dumps(report, indent=2))
    show(report)
    if options.plot:
        plot({part: report[part] for part in options.only}, options.plot)


def prefill(
    subject: Subject, ours: CausalLM, rounds: int, folder: str, options: argparse.Namespace
) -> tuple[dict[str, Any], Any]:
    """A prompt of 8,192 tokens into an empty cache."""
    ids = subject.tokens(ours, PROMPT, 1)
    mine = prompt_job(ours, ids)
    swept, theirs = fastest_peer(
        folder,
        lambda model: prompt_job(model, ids),
        mine,
        options.quick,
        lambda model: prompt_job(model, ids[:, :TRIAL]),
    )
    jobs = {"ours": mine, "transformers": theirs}
    difference = agree(mine, theirs)
    by_round = in_turns(jobs, rounds)
    seconds = medians(by_round)
    floor = work(ours, PROMPT, 0).seconds(matmul_rate(torch.float32), read_bandwidth())
    sides = {"ours": None, "transformers": swept.best}
    memory = {
        side: alone(subject, peer, folder, PROMPT, options.threads)["peak_memory_mb"] for side, peer in sides.items()
    }
    ratios = {
        "prefill_8k": ratio(by_round["transformers"], by_round["ours"]),
        "prefill_memory": memory["ours"] / memory["transformers"],
        "prefill_over_floor": seconds["ours"] / floor,
    }
    report = {"seconds": seconds, "floor_s": floor, "peak_memory_mb": memory, "difference": difference}
    return {**report, "settings": str(swept.best), "sweep": swept.tried}, ratios


def decode(
    subject: Subject, ours: CausalLM, rounds: int, folder: str, options: argparse.Namespace
) -> tuple[dict[str, Any], Any]:
    """One token after caches of several lengths, beside our own dense attention in absorbed form."""
    dense = subject.model("mla").eval()
    narrow = {form: subject.model("dsa", f"index_cache={form}").eval() for form in ("bf16", "int8")}
    milliseconds: dict[str, dict[int, float]] = {
        "dsa": {},
        "dsa, bf16 keys": {},
        "dsa, int8 keys": {},
        "dense": {},
        "transformers": {},
        "floor": {},
        "dense floor": {},
    }
    difference, swept, by_round = {}, {}, {}
    for tokens in CACHES:
        kept = subject.entries(ours, tokens)
        jobs = {"dsa": our_decoding(ours, kept), "dense": our_decoding(dense, kept)}
        jobs |= {f"dsa, {form} keys": our_decoding(model, kept) for form, model in narrow.items()}
        prepare = partial(their_decoding, config=ours.config, kept=kept)
        if tokens <= CACHES[1]:
            found_here, other = fastest_peer(folder, prepare, jobs["dsa"], options.quick)
            swept[tokens] = {"settings": str(found_here.best), "sweep": found_here.tried}
            difference[tokens] = agree(jobs["dsa"], other)
            jobs["transformers"] = other
        by_round[tokens] = decoding_rounds(jobs, rounds)
        for name, seconds in medians(by_round[tokens]).items():
            milliseconds[name][tokens] = 1e3 * seconds
        rates = matmul_rate(torch.float32), read_bandwidth()
        milliseconds["floor"][tokens] = 1e3 * work(ours, 1, tokens).seconds(*rates)
        milliseconds["dense floor"][tokens] = 1e3 * work(dense, 1, tokens, dense=True).seconds(*rates)
    short, middle, long = CACHES
    found, absorbed = milliseconds["dsa"], milliseconds["dense"]
    at_32k, at_64k = by_round[middle], by_round[long]
    ratios = {
        "decode_32k": ratio(at_32k["transformers"], at_32k["dsa"]),
        "decode_32k_over_2k": ratio(at_32k["dsa"], by_round[short]["dsa"]),
        **{
            f"decode_32k_over_2k_{form}": ratio(at_32k[f"dsa, {form} keys"], by_round[short][f"dsa, {form} keys"])
            for form in narrow
        },
        "decode_over_floor": found[short] / milliseconds["floor"][short],
        "decode_64k_vs_absorbed": ratio(at_64k["dense"], at_64k["dsa"]),
        "decode_64k_vs_absorbed_int8": ratio(at_64k["dense"], at_64k["dsa, int8 keys"]),
        "absorbed_over_floor": absorbed[long] / milliseconds["dense floor"][long],
    }
    return {"milliseconds": milliseconds, "difference": difference, "peer": swept}, ratios


def train(
    subject: Subject, ours: CausalLM, rounds: int, folder: str, options: argparse.Namespace
) -> tuple[dict[str, Any], Any]:
    """Loss and gradients of a sequence of 4,096 tokens; the indexer is frozen, or learns from its own loss."""
    learning, ids = (
        subject.model("dsa", "indexer_training=sparse", "recall_queries=0"),
        subject.tokens(ours, TRAIN + 1, 3),
    )

    def job_of(model: Any, tokens: int = TRAIN) -> Job:
        model.train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("indexer" not in name)
        return training_job(model, ids[:, : tokens + 1])

    mine = job_of(ours)
    swept, theirs = fastest_peer(folder, job_of, mine, options.quick, partial(job_of, tokens=TRIAL))
    difference = agree(mine, theirs)
    jobs = {"ours": mine, "transformers": theirs}
    by_round = in_turns({**jobs, "ours with the indexer's loss": training_job(learning, ids)}, rounds)
    seconds = medians(by_round)
    once = work(ours, TRAIN, 0, heads=TRAIN)
    floor = 3 * once.seconds(matmul_rate(torch.float32), read_bandwidth())
    ratios = {
        "train_4k": ratio(by_round["transformers"], by_round["ours"]),
        "train_over_floor": seconds["ours"] / floor,
        "train_indexer_loss": ratio(by_round["ours with the indexer's loss"], by_round["ours"]),
    }
    report = {"seconds": seconds, "floor_s": floor, "difference": difference}
    return {**report, "settings": str(swept.best), "sweep": swept.tried}, ratios


def long(
    subject: Subject, ours: CausalLM, rounds: int, folder: str, options: argparse.Namespace
) -> tuple[dict[str, Any], Any]:
    """A prompt of 131,072 tokens, and a token after as many."""
    found = alone(subject, None, folder, LONG, options.threads)
    rates = matmul_rate(torch.float32), read_bandwidth()
    floor = work(ours, LONG, 0).seconds(*rates)
    seconds = medians(in_turns({"dsa": our_decoding(ours, subject.entries(ours, LONG))}, 10 * rounds))["dsa"]
    ratios = {"prefill_128k_over_floor": found["seconds"] / floor}
    return {**found, "floor_s": floor, "decode_ms": 1e3 * seconds}, ratios


PARTS = {"prefill": prefill, "decode": decode, "train": train, "long": long}


def plot(parts: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws a panel for each part: decoding by cached tokens, the others as bars; floors dashed."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(parts), figsize=(6 * len(parts), 4.5), squeeze=False)
    for axes, (part, found) in zip(panels[0], parts.items(), strict=True):
        axes.set_title(part)
        if part == "decode":
            for name, points in found["milliseconds"].items():
                axes.plot(list(points), list(points.values()), "--" if "floor" in name else "o-", label=name)
            axes.set(xlabel="cached tokens", ylabel="milliseconds a token", xscale="log", yscale="log")
        else:
            seconds = found["seconds"] if isinstance(found["seconds"], dict) else {"ours": found["seconds"]}
            axes.bar(list(seconds), list(seconds.values()))
            axes.axhline(found["floor_s"], linestyle="--", color="black", label="floor")
            axes.set(ylabel="seconds")
        axes.legend()
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()

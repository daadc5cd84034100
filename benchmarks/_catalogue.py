"""The benchmarks that ``scripts/bench`` runs, and how to read their ratios: compared with what, which way is better.

A new benchmark of a ratio gets a row in `BENCHMARKS`; any other file of this folder one in `LEFT_OUT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

PEER, FLOOR, OWN = "a peer at its best", "the counted floor", "another way of ours"
MORE, LESS = "more", "less"


@dataclass(frozen=True)
class Reading:
    """How to read a ratio.

    Attributes:
        of: the other side, `PEER`, `FLOOR` or `OWN`.
        better: `MORE` or `LESS`.
        asked: the least, or the most, that issues ask for; None for nothing.
    """

    of: str
    better: str = MORE
    asked: float | None = None

    def met(self, value: float) -> bool | None:
        """Returns whether a value is as asked; None where nothing is."""
        if self.asked is None:
            return None
        return value >= self.asked if self.better == MORE else value <= self.asked

    def loss(self, before: float, after: float) -> float:
        """Returns by which share the second value is worse; negative if it is better."""
        if min(before, after) <= 0:
            return 0.0
        return 1 - after / before if self.better == MORE else after / before - 1


@dataclass(frozen=True)
class Benchmark:
    """A file of this folder that takes ``--quick`` and ``--json FILE`` and writes ``ratios``.

    Attributes:
        ratios: their readings by name or pattern; the first that fits counts.
        options: further arguments.
        threads: the option that takes a number of threads; empty for none.
        peers: whether it needs the interpreter of ``.venv-peers``.
    """

    ratios: Mapping[str, Reading]
    options: tuple[str, ...] = ()
    threads: str = "--threads"
    peers: bool = False

    def reading(self, name: str) -> Reading | None:
        """Returns how to read a ratio of a name; None for one that says nothing about speed."""
        return next((reading for pattern, reading in self.ratios.items() if fnmatchcase(name, pattern)), None)


BENCHMARKS = {
    "train_vs_transformers": Benchmark({
        "tokens_per_s*": Reading(PEER, asked=1.5),
        "mfu": Reading(FLOOR, asked=0.6),
        "mfu*": Reading(FLOOR),
        "peak_memory": Reading(PEER, LESS),
        "bf16_over_fp32": Reading(OWN, asked=1.3),
    }),
    "rl_vs_trl": Benchmark({"samples_per_s": Reading(PEER, asked=2.0), "*": Reading(PEER)}, threads="--cores"),
    "attention": Benchmark({
        "prefill_over_floor": Reading(FLOOR, LESS, 2.5),
        "absorbed_over_floor": Reading(FLOOR, LESS, 2.0),
        "*_over_floor": Reading(FLOOR, LESS),
        "decode_32k_over_2k*": Reading(OWN, LESS, 2.5),
        "decode_64k_vs_absorbed_int8": Reading(OWN, asked=3.0),
        "decode_64k_vs_absorbed": Reading(OWN),
        "train_indexer_loss": Reading(OWN, LESS),
        "prefill_memory": Reading(PEER, LESS),
        "*": Reading(PEER),
    }),
    "serving": Benchmark({
        "dense_throughput": Reading(PEER, asked=3.0),
        "dense_*": Reading(PEER),
        "dsa_*": Reading(PEER),
        "*": Reading(OWN),
    }),
    "vs_llama_cpp": Benchmark({"*": Reading(PEER, asked=1.0)}, peers=True),
    "optimizer": Benchmark({
        "up_proj_vs_torch_muon": Reading(PEER, asked=8.0),
        "full_set_vs_torch_muon": Reading(PEER),
        "vs_best_form": Reading(OWN, LESS),
        "over_floor": Reading(FLOOR, LESS),
    }),
    "op_floors": Benchmark({"*_over_floor": Reading(FLOOR, LESS)}),
    "quantised": Benchmark({"*_of_bandwidth": Reading(FLOOR), "*_single": Reading(OWN)}),
    "serving_step": Benchmark({"overlap": Reading(OWN)}),
    "deterministic": Benchmark({"*": Reading(OWN, LESS)}),
    "mla256_decode": Benchmark({"time_*": Reading(OWN)}),
    "long_sequence": Benchmark({"*_of_twice_the_tokens": Reading(OWN, LESS)}),
    "recording": Benchmark({"*": Reading(OWN, LESS)}, threads=""),
    "startup": Benchmark({"*": Reading(OWN, LESS)}),
    "sandbox": Benchmark({"*": Reading(OWN, LESS)}),
    "routing": Benchmark({"*": Reading(OWN)}, threads=""),
}  # fmt: skip

LEFT_OUT = {
    "async_rl": "takes hours",
    "async_simulation": "simulates, at no processor's speed",
    "chaos": "shows that nothing is lost",
    "execution": "its figures are rates and losses of a queue",
    "environment_rl": "trains for hours",
    "forgetting": "trains for hours",
    "gpu": "needs a GPU",
    "judge_cost": "trains for minutes, and compares parts of a step",
    "gateway_scale": "its figures are processor seconds of a gateway",
    "hybrid_general": "trains for an hour",
    "hybrid_rewards": "trains for an hour",
    "planner": "compares plans with measurements",
    "prefix_at_update": "compares samples",
    "quantised_quality": "measures quality",
    "reasoning_rl": "needs a run to start from",
    "reward_hacking": "trains for hours",
    "rollout_tail": "simulates slow tools for minutes",
    "router_soak": "a soak",
    "routing_record": "records the decisions that routing replays",
    "serving_soak": "a soak",
    "shared_prefixes": "its ratio depends on the groups that it is given",
    "smollm2_puzzles": "trains for an hour",
    "speculation": "needs a model trained for drafts",
    "style_sense": "measures quality",
}
"""Other files of this folder, with the reason why ``scripts/bench`` does not run them."""

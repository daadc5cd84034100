"""The rows of ``benchmarks/async_rl.py``: options of each besides the common recipe, and variants to sweep."""

from __future__ import annotations

from dataclasses import dataclass

COMMON = (
    "environment=slow_errands", "evaluation.tasks=0", "rollout.refills=0", "rollout.max_new_tokens=64",
    "engine=paged", "engine.max_running=256", "engine.cache_tokens=131072", "trainer.shown=0",
    "trainer.keep_checkpoints=1000", "monitor.idle_steps=0",
)  # fmt: skip
"""Of all rows. Groups of equal rewards are left out and not replaced, so all schedules play the same rollouts."""
ETA = 4
"""Most steps that a rollout may be old when it is admitted, in asynchronous rows."""
STALE = (f"collection.eta={ETA}", "collection.max_staleness=8")
KEPT = "collection.reset_optimizer=false"
WHOLE = ("collection.eta=0", "collection.max_staleness=0", KEPT)
RESET = ("collection.reset_optimizer=true", "optimizer.eps=1e-5")
"""AdamW that was just reset moves each weight by the whole rate, whatever its gradient; not so with an epsilon of the
gradients' size."""
WIDE = ("correction=double_sided", "correction.low=0.2", "correction.high=5")
"""Ratios within which tokens teach. The default, (0.8, 1.28), leaves out 1% of the tokens and half of the gradient:
those whose probability has changed in four steps are those that decide the reward."""
PPO = (
    "algorithm=ppo", "algorithm.kl=0.01", "critic.model=separate", "reward_model.weight=0.1",
)  # fmt: skip
"""Four models. The reward model is the initial one with a head of zeros: it costs as much as a trained one, and gives
every conversation the same score."""


@dataclass(frozen=True)
class Variant:
    """A way to run a row.

    Attributes:
        name: in names of folders.
        overrides: of ``arcforge-rl``, besides those of the row.
        processes: of torchrun.
        batch: multiple of the recipe's groups of a step; there are that many times fewer steps.
    """

    name: str
    overrides: tuple[str, ...] = ()
    processes: int = 1
    batch: int = 1


@dataclass(frozen=True)
class Row:
    """A schedule with its objective.

    Attributes:
        name: in names of folders and in the table.
        title: of the table.
        overrides: of ``arcforge-rl``.
        variants: swept for the fastest; the first one, the fastest of the sweeps in the log, is taken without a sweep.
        apart: whether trainer and engine compute at the same time, with half of the cores each.
        judged: whether a reward model has a part in the reward.
        rank: runs of a lower one come first: 0 for those whose seconds are compared, 1 for idle shares, 2 for learning.
        swept_as: row whose sweep decides between the variants of this one, too; empty: its own.
    """

    name: str
    title: str
    overrides: tuple[str, ...]
    variants: tuple[Variant, ...]
    apart: bool = False
    judged: bool = False
    rank: int = 2
    swept_as: str = ""

    @property
    def brief(self) -> bool:
        """Whether it is measured for its idle shares and the simulator alone: one seed, and few steps."""
        return self.rank == 1


def rows_of(cores: int) -> dict[str, Row]:
    """Returns all rows by name.

    Args:
        cores: that this process may use; a synchronous row uses all of them in either phase.
    """
    continuous = ("collection=asynchronous", *WHOLE)
    one = Variant("continuous", continuous)
    singles = [one, Variant("lockstep")]
    if cores > 1:
        singles.append(Variant("processes", processes=cores))
    barriers = (Variant("continuous-x2", continuous, batch=2), *singles)
    over = ("collection=async", *WHOLE, "collection.oversample=1.5")
    plain = Variant("plain")
    stale = ("collection=async", *STALE)
    uncorrected = "collection.allow_uncorrected=true"
    found = [
        Row("barrier", "barrier", ("algorithm=double_sided",), barriers, rank=0),
        Row("oversampled", "over-sampled 1.5, abort", over, (Variant("x2", batch=2), plain), rank=0),
        Row("one_step_off", "one step off",
            ("collection=async", "collection.eta=1", "collection.whole_batches=true", KEPT), (plain,), apart=True,
            rank=1),
        Row("async", f"async, eta {ETA}, double-sided (0.2, 5)", (*stale, KEPT, *WIDE), (plain,), apart=True, rank=0),
        Row("async_tight", "async, double-sided (0.8, 1.28)", (*stale, KEPT), (plain,), apart=True),
        Row("async_reset", "the same, optimizer reset at each push", (*stale, *RESET), (plain,), apart=True),
        Row("async_clipped", "async, plain clipping",
            (*stale, KEPT, "algorithm=grpo", "algorithm.old=engine", "algorithm.scale=none", uncorrected), (plain,),
            apart=True),
        Row("async_uncorrected", "async, no correction", (*stale, KEPT, "correction=none", uncorrected), (plain,),
            apart=True),
        Row("ppo", "PPO: actor, reference, critic, reward model", PPO,
            tuple(singles), judged=True, rank=1, swept_as="barrier"),
    ]  # fmt: skip
    return {row.name: row for row in found}

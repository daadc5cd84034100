"""Sums over micro-batches, and which gap between trainer and engine ends a run."""

import pytest
import torch
from tests.rl.trainer.conftest import Compose

from arcforge_rl.trainer.module import gap_limit
from arcforge_rl.trainer.sums import Gaps, Sums
from arcforge_rl.trainer.tokens import begun_with


def test_losses_are_summed_figures_weighed_by_tokens_and_the_widest_gap_kept() -> None:
    ours, theirs = Sums(), Sums()
    ours.add(3, {"policy_loss": 0.5}, {"entropy": 1.0}, Gaps(0.75, 3, 0.25))
    ours.add(1, {"policy_loss": 0.25}, {"entropy": 2.0}, Gaps(0.125, 1, 0.125))
    theirs.add(4, {"policy_loss": 1.0, "kl_loss": 0.5}, {"entropy": 0.25}, Gaps(0.25, 4, 0.0625))
    ours.merge(theirs)  # of another process
    assert ours.count == 8
    assert ours.figures == {
        "policy_loss": 1.75,
        "entropy": (3 * 1.0 + 1 * 2.0 + 4 * 0.25) / 8,
        "kl_loss": 0.5,
        "logprob_gap": (0.75 + 0.125 + 0.25) / 8,
        "logprob_gap_max": 0.25,
    }


def test_the_gap_is_of_tokens_that_the_present_weights_computed_alone_and_the_drift_of_older_ones() -> None:
    gap_S, version_S = torch.tensor([0.5, 1e-6, 0.25, 3e-6, 0.1]), torch.tensor([3, 4, 2, 4, 4])
    begun_S = torch.tensor([3, 4, 2, 4, 3])  # the last one follows a hand-over in the middle of its reply
    found = Gaps.of(gap_S, version_S, begun_S, 4).figures
    wanted = {"logprob_gap": 2e-6, "logprob_gap_max": 3e-6, "stale": 0.4, "logprob_drift": 0.375}
    assert found == pytest.approx(wanted)
    assert Gaps.of(gap_S, version_S, begun_S, 5).figures.keys() == {"stale", "logprob_drift"}
    assert "stale" not in Gaps.of(gap_S[1:2], version_S[1:2], begun_S[1:2], 4).figures


def test_replies_are_runs_of_sampled_tokens() -> None:
    index_S, version_S = torch.tensor([3, 4, 5, 9, 10, 14]), torch.tensor([1, 1, 2, 2, 3, 1])
    assert begun_with(index_S, version_S).tolist() == [1, 1, 1, 2, 2, 1]
    assert begun_with(index_S[:0], version_S[:0]).tolist() == []


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ((), 1e-4),
        (("trainer.precision=bf16",), 0.05),
        (("rollout.precision=bf16",), 0.05),
        (("trainer.precision=bf16", "rollout.precision=fp32"), 0.05),
        (("rollout.precision=fp32",), 1e-4),
        (("trainer.max_gap=0.5",), 0.5),
        (("engine=paged", "engine.weights=w8a8"), None),
        (("engine=paged", "engine.weights=w8a8", "trainer.max_gap=0.5"), 0.5),
    ],
)
def test_the_largest_gap_is_that_of_the_precision_unless_one_is_set(
    small_run: Compose, options: tuple[str, ...], limit: float | None
) -> None:
    if "engine=paged" in options:
        pytest.importorskip("arcforge_serving")
    assert gap_limit(small_run(*options)) == limit

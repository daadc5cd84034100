"""Sums over micro-batches, and which gap between trainer and engine ends a run."""

import pytest
from tests.rl.learning.conftest import Compose

from arcforge_rl.learning.module import Sums, gap_limit


def test_losses_are_summed_figures_weighed_by_tokens_and_the_widest_gap_kept() -> None:
    ours, theirs = Sums(), Sums()
    ours.add(3, {"policy_loss": 0.5}, {"entropy": 1.0}, 0.25)
    ours.add(1, {"policy_loss": 0.25}, {"entropy": 2.0}, 0.125)
    theirs.add(4, {"policy_loss": 1.0, "kl_loss": 0.5}, {"entropy": 0.25}, 0.0625)
    ours.merge(theirs)  # of another process
    assert ours.figures == {"policy_loss": 1.75, "entropy": (3 * 1.0 + 1 * 2.0 + 4 * 0.25) / 8, "kl_loss": 0.5}
    assert ours.widest == 0.25 and ours.count == 8


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ((), 1e-4),
        (("trainer.precision=bf16",), 0.05),
        (("rollout.engine_noise=0.1",), None),
        (("rollout.engine_noise=0.1", "trainer.max_gap=0.5"), 0.5),
        (("engine=paged", "engine.weights=w8a8"), None),
        (("engine=paged", "engine.weights=w8a8", "trainer.max_gap=0.5"), 0.5),
    ],
)
def test_the_largest_gap_is_that_of_the_precision_unless_a_fault_is_asked_for(
    small_run: Compose, options: tuple[str, ...], limit: float | None
) -> None:
    if "engine=paged" in options:
        pytest.importorskip("arcforge_serving")
    assert gap_limit(small_run(*options)) == limit

"""Rollouts that a metric marks are left out by chance, and those of a group are spread over updates."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import pytest

from arcforge_core.errors import ConfigError
from arcforge_rl.rollouts.collect import Collected, TracedRollout
from arcforge_rl.rollouts.thinning import thin
from arcforge_rl.trainer.module import parts_of
from rl.rollouts.test_figures import rollout


def step(groups: int = 40, size: int = 5) -> Collected:
    """Returns groups in which the odd rollouts earn 1."""
    names = [[f"{group}-{number}" for number in range(size)] for group in range(groups)]
    return Collected([[named(name, float(int(name[-1]) % 2)) for name in group] for group in names])


def named(name: str, reward: float) -> TracedRollout:
    one = rollout(name, reward)
    return replace(one, trace=replace(one.trace, rollout_id=name))


def ids(groups: Iterable[Sequence[TracedRollout]]) -> list[list[str]]:
    return [[one.trace.rollout_id for one in group] for group in groups]


def test_a_share_of_the_marked_ones_is_left_out_the_same_each_time() -> None:
    before, found, again = step(), step(), step()
    thin(found, "reward", 0.5)
    thin(again, "reward", 0.5)
    assert ids(found.kept) == ids(again.kept) and ids(found.dropped) == ids(again.dropped)
    lost = [one for group in found.dropped for one in group]
    assert 20 < len(lost) < 60 and all(one.outcome.reward == 1.0 for one in lost)  # of 80
    assert found.counts["thinned"] == len(lost)
    assert sorted(chain(*ids(found.kept), *ids(found.dropped))) == sorted(chain(*ids(before.kept)))


@pytest.mark.parametrize(("share", "lost"), [(0.0, 0), (1.0, 80)])
def test_none_or_all_of_the_marked_ones(share: float, lost: int) -> None:
    found = step()
    thin(found, "reward", share)
    assert found.counts["thinned"] == lost and sum(map(len, found.kept)) == 200 - lost


def test_a_group_without_any_rollout_is_dropped_and_nothing_happens_without_a_metric() -> None:
    found = step(size=1)
    found.kept = [[named("all", 1.0), named("marked", 1.0)], [named("left", 0.0)]]
    thin(found, None, 1.0)
    assert len(found.kept) == 2 and "thinned" not in found.counts
    thin(found, "reward", 1.0)
    assert ids(found.kept) == [["left"]]


def test_metrics_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"thin_by=.trivial.: must be a metric of the environment: correct, reward"):
        thin(step(), "trivial", 0.5)


def test_rollouts_of_a_group_are_spread_over_the_updates() -> None:
    found = step(groups=3, size=4)
    whole, spread = parts_of(found, 2), parts_of(found, 2, spread=True)
    assert [[trace.rollout_id[0] for trace in part] for part in whole] == [["0"] * 4 + ["2"] * 4, ["1"] * 4]
    assert [sorted({trace.rollout_id for trace in part}) for part in spread] == [
        [f"{group}-{number}" for group in range(3) for number in numbers] for numbers in ((0, 2), (1, 3))
    ]

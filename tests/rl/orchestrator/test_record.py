"""Outcomes as JSON; those of earlier versions can be read."""

from __future__ import annotations

from arcforge_core.contracts.environment import Failure, Outcome
from arcforge_rl.orchestrator.record import pack_outcome, unpack_outcome


def test_outcomes_keep_raw_and_used_values() -> None:
    for outcome in (
        Outcome({"reward": 0.5, "judge": 0.5}, {"reward": "fair"}, raw={"judge": 5.0}),
        Outcome.failed(Failure("verifier", "no verdict")),
    ):
        assert unpack_outcome(pack_outcome(outcome)) == outcome


def test_outcomes_without_raw_values_can_be_read() -> None:
    text = '{"rewards": {"reward": 1.0}, "reasons": {"reward": "right"}, "failure": null}'
    assert unpack_outcome(text) == Outcome({"reward": 1.0}, {"reward": "right"})

"""The conformance suite of corrections: subclass it with the fixture `make_correction`.

T: sampled tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Correction, PolicyTokens
from arcforge_core.testing.traces import add_stream, make_traces, tokens_of


def drawn(seed: int, spread: float = 0.3) -> PolicyTokens:
    """Returns tokens of nine traces whose three policies differ by about `spread` nats."""
    traces = make_traces(seed, (3, 2, 4))
    add_stream(traces, "old", seed, spread=spread)
    for name in ("advantages", "weights"):
        add_stream(traces, name, seed + 1)
    noise = torch.Generator().manual_seed(seed)
    current = {
        branch.branch_id: branch.streams["old"]
        + spread * torch.randn(len(branch.ids), generator=noise, dtype=torch.float64)
        for trace in traces
        for branch in trace.branches
    }
    tokens = tokens_of(traces, current)
    tokens.logprobs_T.requires_grad_(True)
    return tokens


def fields(tokens: PolicyTokens) -> dict[str, Tensor]:
    """Returns copies of the tensors of some tokens."""
    found = {field.name: getattr(tokens, field.name) for field in dataclasses.fields(tokens)}
    return {name: value.detach().clone() for name, value in found.items() if isinstance(value, Tensor)}


class CorrectionSuite:
    """Conformance of a `Correction`. A subclass provides the fixture ``make_correction``."""

    @pytest.fixture
    def make_correction(self) -> Callable[[], Correction]:
        """Returns a correction; a subclass overrides it."""
        raise NotImplementedError("provide the fixture `make_correction` in your subclass")

    @pytest.mark.parametrize("seed", range(3))
    def test_factors_are_finite_numbers_without_gradient(
        self, make_correction: Callable[[], Correction], seed: int
    ) -> None:
        """One factor of at least 0 for each token, in the tokens' dtype; metrics are finite scalars."""
        tokens = drawn(seed)
        factor_T, metrics = make_correction()(tokens)
        assert factor_T.shape == tokens.logprobs_T.shape and factor_T.dtype == tokens.logprobs_T.dtype
        assert not factor_T.requires_grad and bool(factor_T.isfinite().all()) and bool((factor_T >= 0).all())
        for name, value in metrics.items():
            assert value.dim() == 0 and not value.requires_grad and bool(value.isfinite()), name

    def test_tokens_are_read_only_and_calls_repeat(self, make_correction: Callable[[], Correction]) -> None:
        """A call changes no tensor, and a second one gives the same."""
        correction, tokens = make_correction(), drawn(3)
        before = fields(tokens)
        first_T, _ = correction(tokens)
        second_T, _ = correction(tokens)
        assert torch.equal(first_T, second_T)
        assert all(torch.equal(value, before[name]) for name, value in fields(tokens).items())

    def test_policies_that_agree_are_not_corrected(self, make_correction: Callable[[], Correction]) -> None:
        """Equal policies: every factor is 1."""
        tokens = drawn(4, spread=0.0)
        same = dataclasses.replace(tokens, old_T=tokens.logprobs_T.detach(), rollout_T=tokens.logprobs_T.detach())
        factor_T, _ = make_correction()(same)
        torch.testing.assert_close(factor_T, torch.ones_like(factor_T))

    def test_policies_far_apart_and_no_tokens_at_all(self, make_correction: Callable[[], Correction]) -> None:
        """Differences of hundreds of nats overflow nothing; an empty micro-batch has no factors."""
        tokens = drawn(5, spread=300.0)
        factor_T, metrics = make_correction()(tokens)
        assert bool(factor_T.isfinite().all()) and all(bool(value.isfinite()) for value in metrics.values())
        empty = {name: value[:0] for name, value in fields(tokens).items()}
        factor_T, _ = make_correction()(dataclasses.replace(tokens, **empty, streams={}))
        assert factor_T.shape == (0,)

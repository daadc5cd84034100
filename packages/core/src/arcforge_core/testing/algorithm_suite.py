"""The conformance suite of algorithms: subclass it with the fixture `make_algorithm`.

T: sampled tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from arcforge_core.contracts.algorithm import Algorithm, PolicyLoss, PolicyTokens, Trace
from arcforge_core.errors import ArcforgeError
from arcforge_core.testing.traces import add_stream, make_traces, tokens_of

Current = dict[str, Tensor]


def scored(algorithm: Algorithm, seed: int, branches: int = 1) -> tuple[list[Trace], Current]:
    """Returns scored traces with all required streams, and log-probs of a slightly updated policy."""
    traces = make_traces(seed, (3, 2, 4), branches=branches)
    for number, name in enumerate(sorted(algorithm.needs)):
        add_stream(traces, name, seed + number)
    add_stream(traces, "old", seed + 10, spread=0.05)
    algorithm.score(traces)
    noise = torch.Generator().manual_seed(seed)
    current = {
        branch.branch_id: branch.streams["old"].double()
        + 0.05 * torch.randn(len(branch.ids), generator=noise, dtype=torch.float64)
        for trace in traces
        for branch in trace.branches
    }
    return traces, current


def loss_of(algorithm: Algorithm, traces: Sequence[Trace], current: Current) -> tuple[PolicyTokens, PolicyLoss]:
    """Returns the loss of traces; log-probs, and values if there is a critic, are leaves with gradients."""
    tokens = tokens_of(traces, current)
    values = {"values_T": torch.zeros_like(tokens.logprobs_T)} if "values" in algorithm.needs else {}
    tokens = tokens_of(traces, current, **values)
    for leaf in (tokens.logprobs_T, *values.values()):
        leaf.requires_grad_(True)
    return tokens, algorithm.loss(tokens)


class AlgorithmSuite:
    """Conformance of an `Algorithm`. A subclass provides the fixture ``make_algorithm``."""

    @pytest.fixture
    def make_algorithm(self) -> Callable[[], Algorithm]:
        """Returns an algorithm with its correction; a subclass overrides it."""
        raise NotImplementedError("provide the fixture `make_algorithm` in your subclass")

    @pytest.mark.parametrize("seed", range(3))
    def test_streams_are_written_and_finite(self, make_algorithm: Callable[[], Algorithm], seed: int) -> None:
        """Each branch has ``advantages`` and ``weights``, one number per token."""
        traces, _ = scored(make_algorithm(), seed, branches=3)
        for trace in traces:
            for branch in trace.branches:
                for name in ("advantages", "weights"):
                    stream = branch.streams[name]
                    assert stream.dtype == torch.float32 and stream.shape == (len(branch.ids),)
                    assert bool(stream[branch.index_T].isfinite().all())
                assert bool((branch.streams["weights"][branch.index_T] > 0).all())

    @pytest.mark.parametrize("seed", range(3))
    def test_micro_batches_change_nothing(self, make_algorithm: Callable[[], Algorithm], seed: int) -> None:
        """The losses of single traces add up to that of all traces, and so do the gradients."""
        algorithm = make_algorithm()
        traces, current = scored(algorithm, seed, branches=2)
        tokens, whole = loss_of(algorithm, traces, current)
        torch.stack(list(whole.parts.values())).sum().backward()
        assert tokens.logprobs_T.grad is not None
        parts: dict[str, float] = dict.fromkeys(whole.parts, 0.0)
        gradients = []
        for trace in traces:
            alone, loss = loss_of(algorithm, [trace], current)
            torch.stack(list(loss.parts.values())).sum().backward()
            assert alone.logprobs_T.grad is not None
            gradients.append(alone.logprobs_T.grad)
            for name, value in loss.parts.items():
                parts[name] += float(value.detach())
        for name, value in whole.parts.items():
            assert parts[name] == pytest.approx(float(value.detach()), rel=1e-9, abs=1e-12)
        torch.testing.assert_close(torch.cat(gradients), tokens.logprobs_T.grad, rtol=1e-9, atol=1e-12)

    def test_masked_tokens_have_no_policy_gradient(self, make_algorithm: Callable[[], Algorithm]) -> None:
        """Tokens with factor 0 have none; a policy far from the sampling policy has such tokens."""
        algorithm = make_algorithm()
        traces, current = scored(algorithm, 5)
        far = {name: (value - 2.0 * (index % 2)) for index, (name, value) in enumerate(current.items())}
        tokens, loss = loss_of(algorithm, traces, far)
        loss.parts["policy"].backward()
        assert tokens.logprobs_T.grad is not None and not loss.factor_T.requires_grad
        assert bool((tokens.logprobs_T.grad[loss.factor_T == 0] == 0).all())

    def test_metrics_are_numbers_without_gradient(self, make_algorithm: Callable[[], Algorithm]) -> None:
        """Logged values are finite and keep no graph alive."""
        algorithm = make_algorithm()
        _, loss = loss_of(algorithm, *scored(algorithm, 1))
        assert loss.metrics
        for value in loss.metrics.values():
            assert value.ndim == 0 and not value.requires_grad and math.isfinite(float(value))

    def test_scoring_is_repeatable(self, make_algorithm: Callable[[], Algorithm]) -> None:
        """Scoring again, also with another instance, gives the same result."""
        one, _ = scored(make_algorithm(), 2, branches=2)
        two, _ = scored(make_algorithm(), 2, branches=2)
        again = copy.deepcopy(two)
        make_algorithm().score(again)
        for first, second, third in zip(one, two, again, strict=True):
            for a, b, c in zip(first.branches, second.branches, third.branches, strict=True):
                assert torch.equal(a.streams["advantages"], b.streams["advantages"])
                assert torch.equal(a.streams["advantages"], c.streams["advantages"])

    @pytest.mark.parametrize("seed", range(3))
    def test_copies_count_as_repetitions(self, make_algorithm: Callable[[], Algorithm], seed: int) -> None:
        """A trace with ``copies=3`` gives the advantages and the loss that three equal traces give together."""
        algorithm = make_algorithm()
        traces, current = scored(algorithm, seed, branches=2)
        traces[1].copies = 3
        repeated = [*traces]
        for number in (1, 2):
            again = copy.deepcopy(traces[1])
            again.rollout_id, again.copies = f"{again.rollout_id} copy {number}", 1
            repeated.append(again)
        algorithm.score(traces)
        _, once = loss_of(algorithm, traces, current)
        found = [branch.streams["advantages"].clone() for trace in traces for branch in trace.branches]
        traces[1].copies = 1
        algorithm.score(repeated)
        _, thrice = loss_of(algorithm, repeated, current)
        wanted = [branch.streams["advantages"] for trace in traces for branch in trace.branches]
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        for name, value in once.parts.items():
            torch.testing.assert_close(value, thrice.parts[name], rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
    def test_rewards_that_are_not_finite_are_refused(
        self, make_algorithm: Callable[[], Algorithm], reward: float
    ) -> None:
        """The error names the trace."""
        algorithm = make_algorithm()
        traces, _ = scored(algorithm, 0)
        traces[1].rewards = {"reward": reward}
        with pytest.raises(ArcforgeError, match=traces[1].rollout_id.replace(".", r"\.")):
            algorithm.score(traces)

    def test_malformed_batches_are_refused(self, make_algorithm: Callable[[], Algorithm]) -> None:
        """An empty batch and two traces of the same name are rejected."""
        algorithm = make_algorithm()
        traces, _ = scored(algorithm, 0)
        with pytest.raises(ArcforgeError, match="no traces"):
            algorithm.score([])
        with pytest.raises(ArcforgeError, match="two traces"):
            algorithm.score([*traces, traces[0]])

    def test_a_group_of_equal_rewards_is_finite(self, make_algorithm: Callable[[], Algorithm]) -> None:
        """There is no division by a standard deviation of 0."""
        algorithm = make_algorithm()
        traces, current = scored(algorithm, 3)
        for trace in traces:
            trace.rewards = {"reward": 0.5}
        algorithm.score(traces)
        _, loss = loss_of(algorithm, traces, current)
        assert all(bool(value.isfinite()) for value in loss.parts.values())

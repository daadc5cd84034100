"""Packing changes nothing: log-probabilities, losses and gradients are those of one branch at a time."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.algorithm import Branch, Trace
from arcforge_core.testing.small_models import small_model
from arcforge_core.testing.traces import make_traces
from arcforge_rl.algorithms.gspo import Gspo
from arcforge_rl.algorithms.icepop import IcePop
from arcforge_rl.configs.algorithms import GspoConfig, IcePopConfig
from arcforge_rl.trainer.build import preset
from arcforge_rl.trainer.module import policy_tokens
from arcforge_rl.trainer.tokens import pack, read, write_stream

VOCABULARY = 100


def traces_of(seed: int, branches: int = 2) -> list[Trace]:
    return make_traces(seed, (3, 2), branches=branches)


@given(seed=st.integers(0, 1000), room=st.integers(1, 80), split=st.booleans())
@settings(max_examples=30, deadline=None)
def test_every_sampled_token_is_in_one_micro_batch_after_what_was_read(seed: int, room: int, split: bool) -> None:
    traces = traces_of(seed, branches=3)
    micros = pack(traces, room, split)
    order = dict.fromkeys(trace.rollout_id for micro in micros for trace in micro.traces)
    assert [*order] == [trace.rollout_id for trace in traces]
    read_ = [branch.branch_id for micro in micros for branch in micro.branches()]
    assert read_ == [branch.branch_id for trace in traces for branch in trace.branches if branch.num_sampled]
    for micro in micros:
        alone = len(micro.branches()) == 1 if split else len(micro.traces) == 1
        assert micro.batch.num_tokens <= room or alone
        starts = micro.batch.cu_query.tolist()
        found = list(zip(micro.row_S.tolist(), micro.target_S.tolist(), micro.rollout_S.tolist(), strict=True))
        for branch, start in zip(micro.branches(), starts, strict=False):
            for place, sampled in enumerate(branch.sampled):
                if sampled:
                    row, target, logprob = found.pop(0)
                    assert micro.tokens_T[start : row + 1].tolist() == branch.ids[:place].tolist()
                    assert target == branch.ids[place]
                    assert logprob == pytest.approx(branch.logprobs[place])
        assert not found


def test_branches_without_sampled_tokens_are_not_read() -> None:
    silent = Branch("b", [1, 2, 3], [False] * 3, [0.0] * 3, [-1] * 3)
    spoken = Branch("a", [1, 2, 3], [False, False, True], [0.0, 0.0, -1.0], [-1, -1, 0])
    (micro,) = pack([Trace("t", "g", "r", [silent, spoken], {"reward": 1.0})], 64)
    assert micro.tokens_T.tolist() == [1, 2] and micro.branches() == [spoken]


def test_logprobs_are_those_of_each_branch_alone() -> None:
    model = small_model(vocab_size=VOCABULARY)
    traces = traces_of(3)
    for micro in pack(traces, 64):
        write_stream(micro, "again", read(model, micro, 1.0).logprobs_S.detach())
    for trace in traces:
        for branch in trace.branches:
            logits_TV = model(torch.tensor(branch.ids)[None]).logits[0].detach().log_softmax(-1)
            for place in branch.index_T.tolist():
                wanted = float(logits_TV[place - 1, branch.ids[place]])
                assert float(branch.streams["again"][place]) == pytest.approx(wanted, abs=2e-5)


def test_entropy_is_that_of_the_distribution() -> None:
    model = small_model(vocab_size=VOCABULARY)
    (micro,) = pack(traces_of(1)[:1], 64)
    found = read(model, micro, 1.0)
    logits_SV = model.logits(model.hidden(micro.tokens_T, micro.batch).hidden_TD[micro.row_S])
    torch.testing.assert_close(found.entropy_S, torch.distributions.Categorical(logits=logits_SV).entropy())


@pytest.mark.parametrize("chunked", [False, True])
def test_micro_batches_and_chunks_change_neither_loss_nor_gradient(
    monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    if chunked:
        monkeypatch.setattr("arcforge_rl.trainer.tokens.CHUNK", 2 * VOCABULARY)
    algorithm = IcePop(IcePopConfig(), preset("icepop"))
    found = []
    for room in (1, 4096):
        model = small_model(vocab_size=VOCABULARY)
        traces = traces_of(5)
        for trace in traces:  # as if the engine had nearly the trainer's model
            for micro in pack([trace], 4096):
                near_S = read(model, micro, 1.0).logprobs_S.detach() + 0.1
                for branch, part in zip(
                    micro.branches(), near_S.split([b.num_sampled for b in micro.branches()]), strict=True
                ):
                    logprobs = branch.logprobs.copy()
                    logprobs[branch.sampled] = part.numpy()
                    near = Branch(branch.branch_id, branch.ids, branch.sampled, logprobs.clip(max=0), branch.versions)
                    near.streams.update(branch.streams)
                    trace.branches[trace.branches.index(branch)] = near
        algorithm.score(traces)
        total = 0.0
        micros = pack(traces, room, algorithm.splits)
        for micro in micros:
            loss = sum(algorithm.loss(policy_tokens(micro, read(model, micro, 1.0), None)).parts.values())
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            total += float(loss.detach())
        found.append(
            (len(micros), total, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        )
    (many, first, gradients), (one, second, others) = found
    assert many > len(traces) and one == 1 and gradients, "traces were split"
    assert first == pytest.approx(second, abs=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, others[name], atol=2e-6, rtol=1e-4, msg=name)


def test_losses_that_compare_the_tokens_of_a_trace_read_it_whole() -> None:
    assert IcePop(IcePopConfig(), preset("icepop")).splits
    assert not Gspo(GspoConfig(), preset("none")).splits
    assert not IcePop(IcePopConfig(), replace(preset("icepop"), level="geometric")).splits


def test_streams_come_back_where_they_belong() -> None:
    traces = traces_of(7)
    for micro in pack(traces, 40):
        write_stream(micro, "marks", micro.target_S.float() + 0.5)
    for trace in traces:
        for branch in trace.branches:
            for place, sampled in enumerate(branch.sampled):
                assert float(branch.streams["marks"][place]) == (branch.ids[place] + 0.5 if sampled else 0.0)


def test_a_rollouts_oldest_version_is_that_of_all_its_branches() -> None:
    """With ``engine.prefix_at_update=keep`` a later branch may read entries that the versions before it computed."""
    first = Branch("a", [1, 2, 3], [False, True, True], [0.0, -1.0, -1.0], [-1, 3, 4])
    later = Branch("b", [1, 2], [False, True], [0.0, -1.0], [-1, 4])
    traces = [
        Trace("t", "g", name, branches, {"reward": 1.0}) for name, branches in [("r", [first, later]), ("s", [later])]
    ]
    (micro,) = pack(traces, 64)
    assert micro.begun_S.tolist() == [3, 3, 4, 4] and micro.oldest_S.tolist() == [3, 3, 3, 4]

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from arcforge_core.config.schema import MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.testing.small_models import small_model
from arcforge_core.train.losses import Normalizers, cross_entropy, micro_loss, plan_mtp
from support.models import segment_lengths, train_batch


def alone(values):
    """The reduction of a single process."""
    return values, 1.0


def loss_of(model, micro, reduce=alone):
    mtp = model.config.mtp
    plan = plan_mtp(micro, mtp.depths, mtp.fraction)
    return micro_loss(model, micro, plan, Normalizers.of([micro], [plan], mtp.depths, reduce))


@settings(max_examples=20)
@given(segment_lengths())
def test_the_loss_is_what_a_plain_computation_document_by_document_gives(lengths):
    model = small_model(mtp=MtpConfig(depths=2, fraction=1.0, weight=0.3), balance_loss_weight=0.01).double()
    micro = train_batch(lengths, 64, unweighted=[0])
    nll, mtp_nll, weights, mtp_weights = 0.0, [0.0, 0.0], 0.0, [0.0, 0.0]
    starts = [0, *micro.batch.cu_query[1:].tolist()]
    for start, end in pairwise(starts):
        document = torch.cat([micro.tokens_T[start:end], micro.targets_T[end - 1 : end]])
        batch = SequenceBatch.build([end - start])
        hidden_TD = model.hidden(document[:-1], batch).hidden_TD
        weight_T = micro.weights_T[start:end].double()
        nll += (F.cross_entropy(model.logits(hidden_TD), document[1:], reduction="none") * weight_T).sum()
        weights += weight_T.sum()
        for d in (1, 2):
            ahead_T = document[(torch.arange(end - start) + d).clamp(max=end - start)]
            hidden_TD = model.mtp_step(ahead_T, hidden_TD, batch, model.rope(batch)).x_TD
            count = end - start - d
            if count > 0:
                nll_T = F.cross_entropy(model.logits(hidden_TD[:count]), document[d + 1 :], reduction="none")
                mtp_nll[d - 1] += (nll_T * weight_T[d:]).sum()
                mtp_weights[d - 1] += float(weight_T[d:].sum())
    out = loss_of(model, micro)
    expected = {"loss": nll / max(float(weights), 1.0)}
    for d in (1, 2):
        expected[f"mtp_loss_{d}"] = torch.as_tensor(mtp_nll[d - 1] / max(mtp_weights[d - 1], 1.0), dtype=torch.float64)
    balance = model.hidden(micro.tokens_T, micro.batch).aux_losses["balance"]
    assert out.parts.keys() == {*expected, "balance_loss"}
    for name, value in expected.items():
        torch.testing.assert_close(out.parts[name], value.detach(), msg=name)
    torch.testing.assert_close(out.parts["balance_loss"], balance)
    rope, hidden_TD = model.rope(micro.batch), model.hidden(micro.tokens_T, micro.batch).hidden_TD
    mtp_balance = []
    for step in plan_mtp(micro, 2, 1.0).depths:
        mtp = model.mtp_step(step.next_tokens_T, hidden_TD, micro.batch, rope)
        hidden_TD, mtp_balance = mtp.x_TD, [*mtp_balance, mtp.aux_losses["balance"]]
    total = expected["loss"] + 0.3 * (expected["mtp_loss_1"] + expected["mtp_loss_2"]) / 2
    total = total + 0.01 * (balance + sum(mtp_balance) / 2)
    torch.testing.assert_close(out.total, total)


def test_parts_are_detached_and_loads_count_every_depth():
    model, micro = small_model(mtp=MtpConfig(depths=3, fraction=1.0)), train_batch([4, 6], 64)
    out = loss_of(model, micro)
    assert out.total.requires_grad and not any(value.requires_grad for value in out.parts.values())
    assert out.expert_loads[1].sum() == 10 * 2 and out.expert_loads[2].sum() == 3 * 10 * 2


def test_a_zero_fraction_runs_no_mtp(monkeypatch):
    model, micro = small_model(mtp=MtpConfig(depths=3, fraction=0.0)), train_batch([4, 6], 64)
    monkeypatch.setattr(CausalLM, "mtp_step", lambda *_: pytest.fail("ran"))
    out = loss_of(model, micro)
    out.total.backward()
    assert set(out.parts) == {"loss", "balance_loss"} and all(p.grad is None for p in model.mtp.parameters())


def test_a_fraction_runs_only_its_segments():
    model, micro = small_model(mtp=MtpConfig(depths=1, fraction=0.25)), train_batch([2, 6, 4], 64)
    out = loss_of(model, micro)
    assert out.expert_loads[2].sum() == (2 + 6) * 2  # 2 of 12 tokens are less than a quarter
    first = loss_of(small_model(mtp=MtpConfig(depths=1, fraction=1.0)), train_batch([2, 6], 64))
    torch.testing.assert_close(out.parts["mtp_loss_1"], first.parts["mtp_loss_1"])


def test_mtp_trains_embedding_head_and_backbone_too():
    model = small_model(mtp=MtpConfig(depths=2, fraction=1.0)).double()
    without = small_model(mtp=MtpConfig(depths=2, fraction=0.0)).double()
    micro = train_batch([7], 64)
    for m in (model, without):
        loss_of(m, micro).total.backward()
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"):
        assert not torch.allclose(model.get_parameter(name).grad, without.get_parameter(name).grad), name


def test_zero_weights_give_zero_losses_and_no_gradient_but_the_balance():
    model = small_model(balance_loss_weight=0.0)
    micro = train_batch([3, 4], 64, unweighted=range(7))
    out = loss_of(model, micro)
    out.total.backward()
    assert out.parts["loss"] == 0 and out.parts["mtp_loss_1"] == 0 and out.total == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_documents_too_short_for_a_depth_cost_nothing_there():
    out = loss_of(small_model(mtp=MtpConfig(depths=3, fraction=1.0)), train_batch([2, 1], 64))
    assert out.parts["mtp_loss_1"] > 0 and out.parts["mtp_loss_2"] == 0 and out.parts["mtp_loss_3"] == 0


def test_normalizers_sum_over_micro_batches_and_processes():
    micros = [train_batch([3, 2], 64, unweighted=[1]), train_batch([4], 64)]
    plans = [plan_mtp(m, 2, 0.5) for m in micros]
    norm = Normalizers.of(micros, plans, 2, alone)
    # of [3, 2] the first segment is half of the tokens; a depth loses one target per segment
    assert norm == Normalizers(inputs=9.0, mtp_inputs=7.0, weights=8.0, mtp_weights=(1.0 + 3.0, 1.0 + 2.0))
    two = Normalizers.of(micros, plans, 2, lambda sums: ([s * 3 for s in sums], 2.0))
    assert two == Normalizers(13.5, 10.5, 12.0, (6.0, 4.5))


def test_fractional_weights_are_divided_by_their_own_sum():
    model, micro = small_model(), train_batch([3], 64)
    full = loss_of(model, micro).parts["loss"]
    micro.weights_T.fill_(0.1)
    torch.testing.assert_close(loss_of(model, micro).parts["loss"], full)


def test_cross_entropy_is_the_weighted_sum_under_the_head():
    model, micro = small_model(), train_batch([5], 64)
    hidden_TD, weights_T = torch.randn(5, 32), torch.rand(5)
    expected = (F.cross_entropy(model.logits(hidden_TD), micro.targets_T, reduction="none") * weights_T).sum()
    torch.testing.assert_close(cross_entropy(model, hidden_TD, micro.targets_T, weights_T), expected)

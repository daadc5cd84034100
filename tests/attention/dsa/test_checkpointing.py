"""Activation checkpointing around DSA: the same gradients, and no second search for the keys."""

import pytest
import torch

from arcforge_attention.configs import DsaConfig
from arcforge_core.config.schema import MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.build import build_model
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config
from arcforge_core.train.step import StepBatch, accumulate_gradients
from support.models import train_batch


def gradients(stage, checkpointing):
    torch.manual_seed(0)
    model = build_model(small_config(num_attention_heads=4), DsaConfig(indexer_training=stage), Ops(None))
    model.activation_checkpointing = checkpointing
    step = StepBatch([train_batch([30, 5, 40], 64)])
    accumulate_gradients(model, step, lambda loss: loss.backward(), lambda sums: (sums, 1.0))
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("stage", ["off", "dense", "sparse"])
def test_gradients_are_the_same_bits(stage):
    plain, recomputed = (gradients(stage, checkpointing) for checkpointing in (False, True))
    for name, grad in plain.items():
        assert (grad is None) == (recomputed[name] is None), name
        assert grad is None or torch.equal(grad, recomputed[name]), name


@torch.library.custom_op("arcforge_test::indexer_topk", mutates_args=())
def counted(
    q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, cu_query: torch.Tensor, cu_key: torch.Tensor, topk: int
) -> torch.Tensor:
    calls.append(len(q))
    return reference.indexer_topk(q, k, w, cu_query, cu_key, topk)


calls: list[int] = []


def test_a_registered_op_that_selects_is_run_once():
    torch.manual_seed(0)
    model = build_model(small_config(num_attention_heads=4, mtp=MtpConfig(depths=0)), DsaConfig(), Ops(None))
    model.activation_checkpointing = True
    for layer in model.model.layers:
        layer.self_attn.indexer_topk = lambda *args: torch.ops.arcforge_test.indexer_topk(*args[:6])
    calls.clear()
    tokens_T, batch = torch.arange(40), SequenceBatch.build([40])
    model.hidden(tokens_T, batch).hidden_TD.sum().backward()
    assert calls == [40] * len(model.model.layers)

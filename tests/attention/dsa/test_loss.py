"""The indexer's loss against plain formulas, what it reaches, and blocks that change nothing."""

import pytest
import torch

import arcforge_attention.dsa.loss as loss_module
from arcforge_attention.configs import DsaConfig, MlaConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.ops.reference import kl
from arcforge_core.testing.attention_suite import build_layer, close, inputs, rope, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=4, index_n_heads=3, index_topk=6)
LENGTHS = (13, 1, 4, 21)


def layer_of(stage, **options):
    return build_layer(DsaConfig(indexer_training=stage, **options), MODEL, torch.float64)


def trained(layer, lengths=LENGTHS, **options):
    """Runs the layer with gradients; returns its input and what it said."""
    x_TD = inputs(sum(lengths), MODEL).double().requires_grad_()
    return x_TD, run(layer, x_TD, SequenceBatch.build(lengths), MODEL, **options)


def naive_loss(layer, x_TD, lengths, sparse):
    """The mean KL by full matrices, a document at a time (spec 3.4)."""
    total, recalls = 0.0, []
    for x in x_TD.detach().split(lengths):
        tables = rope(SequenceBatch.build([len(x)]), MODEL)
        q_TQ = layer.query_latent(x)
        q_THK = layer.queries(q_TQ, tables)
        latent_SC, rope_SR = layer.entries(x, tables).split((layer.latent, layer.rotary), -1)
        k_SHN = layer.kv_b_proj(latent_SC).view(len(x), layer.heads, -1)[..., : layer.nope]
        k_SHK = torch.cat([k_SHN, rope_SR[:, None].expand(-1, layer.heads, -1)], -1)
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_SHK) * layer.scale
        q_TID, k_SD = layer.indexer.queries(q_TQ.detach(), tables), layer.indexer.keys(x, tables)
        index_TS = (torch.einsum("tid,sd->tis", q_TID, k_SD).relu() * layer.indexer.weights(x)[..., None]).sum(1)
        for t in range(len(x)):
            keys = torch.arange(t + 1)
            best = index_TS[t, : t + 1].sort(descending=True, stable=True).indices[: layer.topk]
            mass = scores_HTS[:, t, : t + 1].softmax(-1).mean(0)
            if t >= layer.topk:
                recalls.append(float(mass[best].sum().detach()))
            if sparse and len(x) > layer.topk:
                keys = best
            p = scores_HTS[:, t, keys].softmax(-1).mean(0).detach()
            total = total + (p * (p.log() - index_TS[t, keys].log_softmax(-1))).sum()
    return total / len(x_TD), sum(recalls) / len(recalls)


@pytest.mark.parametrize("block", [1, 100, 1 << 22], ids=["a query a block", "some", "one block"])
@pytest.mark.parametrize("stage", ["dense", "sparse"])
def test_equals_full_matrices(stage, block, monkeypatch):
    monkeypatch.setattr(loss_module, "SCORES", block)
    layer = layer_of(stage)
    x_TD, out = trained(layer)
    wanted, wanted_recall = naive_loss(layer, x_TD, LENGTHS, stage == "sparse")
    close(out.aux_losses["indexer"], wanted, 1e-10)
    close(out.figures["indexer_recall"], torch.tensor(wanted_recall), 1e-6)
    parameters = list(layer.indexer.parameters())
    grads = [torch.autograd.grad(value, parameters) for value in (out.aux_losses["indexer"], wanted)]
    for got, naive in zip(*grads, strict=True):
        close(got, naive, 1e-9)


@pytest.mark.parametrize("stage", ["dense", "sparse"])
def test_each_loss_reaches_its_own_parameters_alone(stage):
    layer = layer_of(stage)
    x_TD, out = trained(layer)
    own = {name for name, _ in layer.named_parameters() if name.startswith("indexer.")}
    for value, reached in ((out.aux_losses["indexer"], own), (out.out_TD.square().sum(), None)):
        grads = torch.autograd.grad(value, [x_TD, *layer.parameters()], retain_graph=True, allow_unused=True)
        names = {name for (name, _), grad in zip(layer.named_parameters(), grads[1:], strict=True) if grad is not None}
        assert names == (reached or {name for name, _ in layer.named_parameters()} - own)
        assert (grads[0] is None) == (reached is not None)


def test_gradient_is_softmax_minus_target():
    generator = torch.Generator().manual_seed(0)
    scores_TS = torch.randn(4, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    visible_TS = torch.ones(4, 7, dtype=torch.bool).tril(3)
    target_TS = torch.randn(4, 7, generator=generator).double().masked_fill(~visible_TS, -torch.inf).softmax(-1)
    value = kl(target_TS, scores_TS, visible_TS).sum()
    (grad_TS,) = torch.autograd.grad(value, scores_TS)
    close(grad_TS, scores_TS.masked_fill(~visible_TS, -torch.inf).softmax(-1) - target_TS, 1e-12)
    assert value > 0
    logs_TS = target_TS.masked_fill(~visible_TS, 1.0).log() + 3.0
    assert kl(target_TS, logs_TS, visible_TS).abs().max() < 1e-12


def test_a_target_of_zero_costs_nothing():
    visible_TS = torch.ones(1, 3, dtype=torch.bool)
    scores_TS = torch.tensor([[0.0, -500.0, 1.0]], requires_grad=True)
    value = kl(torch.tensor([[0.5, 0.0, 0.5]]), scores_TS, visible_TS).sum()
    assert bool(value.isfinite())
    assert bool(torch.autograd.grad(value, scores_TS)[0].isfinite().all())


def test_warm_up_keeps_dense_attention():
    layer, mla = layer_of("dense"), build_layer(MlaConfig(), MODEL, torch.float64)
    mla.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("indexer.")})
    x_TD, batch = inputs(30, MODEL).double(), SequenceBatch.build([30])
    assert torch.equal(run(layer, x_TD, batch, MODEL).out_TD, run(mla, x_TD, batch, MODEL).out_TD)


def test_nothing_is_said_without_gradients_or_when_off():
    x_TD, batch = inputs(30, MODEL).double(), SequenceBatch.build([30])
    assert run(layer_of("sparse"), x_TD, batch, MODEL).aux_losses == {}
    out = trained(layer_of("off"), (30,))[1]
    assert (out.aux_losses, out.figures) == ({}, {})


def test_options_have_their_effect():
    plain, heavy = (trained(layer_of("sparse", indexer_loss_weight=w))[1].aux_losses["indexer"] for w in (1.0, 2.5))
    close(heavy, 2.5 * plain, 1e-12)
    assert trained(layer_of("sparse", recall_queries=0))[1].figures == {}
    whole, few = (trained(layer_of("dense", recall_queries=n))[1].figures["indexer_recall"] for n in (64, 2))
    assert whole != few


def test_recall_is_one_where_every_key_is_selected():
    assert trained(layer_of("sparse"), (6, 3))[1].figures["indexer_recall"] == 1.0


def test_an_indexer_that_learns_finds_more_of_the_attention():
    layer = layer_of("dense")
    optimizer = torch.optim.Adam(layer.indexer.parameters(), lr=3e-3)
    seen = []
    for _ in range(150):
        optimizer.zero_grad()
        out = trained(layer, (40, 40))[1]
        out.aux_losses["indexer"].backward()
        optimizer.step()
        seen.append((float(out.aux_losses["indexer"].detach()), float(out.figures["indexer_recall"])))
    assert seen[-1][0] < 0.5 * seen[0][0] and seen[-1][1] > seen[0][1] + 0.05


def test_memory_kept_for_the_backward_pass_grows_with_the_tokens():
    """Saved tensors are counted; twice the tokens save twice as much."""
    saved = []
    for tokens in (64, 128):
        layer, sizes = layer_of("sparse"), {}
        pack = lambda x, sizes=sizes: sizes.__setitem__(x.data_ptr(), x.untyped_storage().nbytes()) or x  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = trained(layer, (tokens,))[1].aux_losses["indexer"]
        saved.append(sum(sizes.values()))
        assert loss.requires_grad
    assert saved[1] < 2.2 * saved[0]

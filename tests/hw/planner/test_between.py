"""Bytes between products, beside those that the operators of a real model move."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arcforge_core.config.compose import compose
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.build import build_model
from arcforge_core.ops import bind_ops
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.reference import swiglu
from arcforge_core.train.step import clip_gradients
from arcforge_hw.planner.between import between_products
from arcforge_hw.planner.chip import chip_named
from arcforge_hw.planner.counts import count_model
from arcforge_hw.planner.layout import Layout
from arcforge_hw.planner.machine import machine_of
from arcforge_hw.planner.step import Load, forward
from arcforge_hw.planner.training import optimizer_bytes

TOKENS = 64
PRODUCTS = {"linear", "head_linear", "router_scores"}
H100 = machine_of(chip_named("nvidia_h100"), {})


class Traffic(TorchDispatchMode):
    """Adds up what operators read and write; ops of ours count as one operator, products and views as none."""

    def __init__(self, counts):
        super().__init__()
        self.counts, self.bytes, self.inside = counts, 0, False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if self.inside or function.is_view or name in ("mm", "addmm", "bmm", "detach"):
            return out
        if name in ("gather", "index"):  # reads the rows that it looks up
            self.count(out, out, args[2:])
        elif changed := WRITTEN.get(name):
            self.count(args, [args[place] for place in changed])
        else:
            self.count(args, kwargs, out)
        return out

    def count(self, *things):
        leaves = torch.utils._pytree.tree_leaves(things)
        self.bytes += sum(x.nbytes for x in leaves if isinstance(x, torch.Tensor) and x.ndim and self.counts(x))

    @contextmanager
    def one_op(self):
        outer, self.inside = self.inside, True
        yield
        self.inside = outer


WRITTEN = {"_fused_adamw_": (0, 2, 3), "_foreach_mul_": (0,)}
"""Arguments that operators change: AdamW's parameters and moments; gradients it changes with a scaler only."""


def is_row(x):
    """Returns whether a tensor belongs to tokens; weights and biases do not."""
    return not isinstance(x, torch.nn.Parameter) and x.shape[0] % TOKENS == 0


class Binder:
    """Binds references that count as one operator each."""

    def __init__(self, traffic):
        self.traffic, self.true = traffic, Ops(None).binder(torch.float32, "cpu", needs_grad=False)

    def __getattr__(self, name):
        return getattr(self.true, name)

    def __call__(self, name, **sizes):
        reference = self.true(name, **sizes)

        def run(*args, **kwargs):
            with self.traffic.one_op():
                out = reference(*args, **kwargs)
            if name not in PRODUCTS:
                self.traffic.count(args, kwargs, out)
            return out

        return self.experts if name == "moe_experts" else run

    def experts(self, x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK):
        """Rows are copied once for each chosen expert, and the experts' results are read once."""
        with self.traffic.one_op():
            token_S, expert_S = torch.arange(TOKENS).repeat_interleave(expert_TK.shape[1]), expert_TK.flatten()
        rows_SD = x_TD[token_S]
        with self.traffic.one_op():
            both_SF = torch.bmm(gate_up_EFD[expert_S], rows_SD[..., None])[..., 0]
            inner_SF = swiglu(*both_SF.chunk(2, -1))
        self.traffic.count(both_SF, inner_SF)
        with self.traffic.one_op():
            back_TKD = torch.bmm(down_EDF[expert_S], inner_SF[..., None])[..., 0].view(*expert_TK.shape, -1)
            out_TD = torch.einsum("tkd,tk->td", back_TKD, gate_TK)
        self.traffic.count(back_TKD, out_TD)
        return out_TD


def measured(attention="mla", *overrides):
    """Returns the parts of a layer of each kind: bytes of a token as they were counted, and in the plan."""
    config = compose(["model=tiny", f"attention={attention}", *overrides])
    model = build_model(config.model, config.attention, Ops(None)).eval()
    traffic = Traffic(is_row)
    bind_ops(model, Binder(traffic))
    batch, found = SequenceBatch.build([TOKENS]), []
    x_TD = torch.randn(TOKENS, config.model.hidden_size)

    def counted(run, *args, **kwargs):
        traffic.bytes = 0
        with torch.no_grad(), traffic:
            run(*args, **kwargs)
        return traffic.bytes / TOKENS

    rope = model.rope(batch)
    for layer, more in ((model.model.layers[0], ()), (model.model.layers[-1], (None,))):
        attend = counted(layer.self_attn, x_TD, batch, None, rope=rope)
        feed = counted(layer.mlp, x_TD, *more)
        found.append((attend, feed, between_products(layer, config.model, 4, ())))
    whole = counted(model.model.layers[0], x_TD, batch, rope)
    return config.model, whole, found


def test_a_dense_layer_moves_what_its_operators_move():
    _, whole, ((attend, feed, plan), _) = measured()
    assert feed == plan.mlp
    assert whole - attend - feed == plan.whole
    assert plan.expert == 0


def test_a_mixture_moves_what_routing_and_experts_move():
    config, _, (_, (_, feed, plan)) = measured()
    norms_and_sums = 4 * 10 * config.hidden_size
    assert feed == plan.whole - norms_and_sums + plan.mlp + config.num_experts_per_tok * plan.expert


@pytest.mark.parametrize("attention", ["mla", "dsa", "gqa"])
def test_attention_moves_about_what_its_operators_move(attention):
    _, _, found = measured(attention)
    for attend, _, plan in found:
        assert 0.7 <= plan.attention / attend <= 1.4


def counted(weights="none", dtype=torch.float32):
    config = compose(["model=tiny"])
    return count_model(config.model, config.attention, weights, dtype)


def test_rounding_reads_floats_and_writes_integers():
    plain, rounds, config = counted().layers[-1].between, counted("w8a8").layers[-1].between, counted().config
    pairs = [(config.hidden_size, 4 + 1), (config.moe_intermediate_size, 4 + 1)]
    assert rounds.expert - plain.expert == sum(columns * size for columns, size in pairs)
    assert rounds.whole == plain.whole and rounds.attention > plain.attention and rounds.mlp > plain.mlp
    assert counted("int4").layers[-1].between == plain


def test_adamw_and_clipping_move_what_is_counted():
    weight = torch.nn.Parameter(torch.randn(100_000))
    optimizer = torch.optim.AdamW([weight], fused=True)
    for _ in range(2):  # the first step makes the state
        weight.grad = torch.randn_like(weight)
        traffic = Traffic(lambda _: True)
        with traffic:
            clip_gradients([("weight", weight)], 1e-3)
            optimizer.step()
    count = counted()
    assert traffic.bytes / weight.numel() == pytest.approx(optimizer_bytes(count, Layout()) / count.values[0], rel=1e-3)
    half = optimizer_bytes(counted(dtype=torch.bfloat16), Layout())
    assert half == count.values[0] * (2 * 12 + 2 + 2 + 3 * 2)  # masters and moments, gradient, weight, clipping


def test_work_between_products_takes_its_bytes_at_the_stream_rate():
    count, load = counted(dtype=torch.bfloat16), Load(8.0, 0.0, 1.0, 1.0)
    slow, fast = (forward(count, replace(H100, stream=rate), Layout(), load).between for rate in (1e9, 2e9))
    layers = [layer.between for layer in count.layers]
    each = sum(x.whole + x.attention + x.mlp + count.config.num_experts_per_tok * x.expert for x in layers)
    assert slow == pytest.approx(2 * fast) and slow == pytest.approx((8 * each + 2 * count.config.vocab_size) / 1e9)
    assert forward(count, H100, Layout(), load).between == pytest.approx(slow * 1e9 / H100.bandwidth)

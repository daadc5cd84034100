"""The indexer's loss in Triton: the reference's values and gradients, on a GPU or in the interpreter."""

import pytest
import torch

import arcforge_hw.cuda.indexer_kl as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_core.testing.attention_inputs import selection
from arcforge_core.testing.hardware_checks import relative_error
from arcforge_core.testing.op_case import OpCase


def make(queries, keys, heads=3, width=20, index_heads=2, index_width=12, topk=6, use_relu=True):
    draw = torch.Generator().manual_seed(sum(keys))

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    tokens, total = sum(queries), sum(keys)
    args = {"q_THC": normal(tokens, heads, width), "kv_SC": normal(total, width)}
    args |= {"q_TID": normal(tokens, index_heads, index_width), "k_SD": normal(total, index_width)}
    args |= {"w_TI": normal(tokens, index_heads), "indices_TK": selection(draw, queries, keys, topk)}
    args |= {"cu_query": cumulative(queries), "cu_key": cumulative(keys), "scale": 0.3, "use_relu": use_relu}
    return OpCase("indexer_kl", "made", args, ("q_TID", "k_SD", "w_TI"))


CASES = {
    "one token": make([1], [1]),
    "ragged": make([1, 3, 2], [1, 5, 9]),
    "with a past": make([2, 1], [9, 4], use_relu=False),
    "tiles with keys left over": make([1], [70], topk=66),
    "heads and widths over several blocks": make([2], [40], heads=70, width=140, index_heads=18, topk=33),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_the_reference(case, device):
    """Forward and gradients, strided inputs, twice the same bits."""
    for with_grad in (False, True):
        error = relative_error(kernel.indexer_kl, case, device, torch.float32, with_grad, strided=with_grad)
        assert error < 2e-5


def test_attention_gets_no_gradient(device):
    args = CASES["ragged"].inputs(torch.float32, device)
    attention = [args[name].requires_grad_() for name in ("q_THC", "kv_SC")]
    args["q_TID"].requires_grad_()
    loss = kernel.indexer_kl(*args.values())
    assert torch.autograd.grad(loss, attention, allow_unused=True) == (None, None)


def test_without_tokens(device):
    args = CASES["ragged"].inputs(torch.float32, device)
    for name in ("q_THC", "q_TID", "w_TI", "indices_TK"):
        args[name] = args[name][:0]
    leaves = [args[name].requires_grad_() for name in ("q_TID", "k_SD", "w_TI")]
    args |= {"cu_query": cumulative([0]), "cu_key": cumulative([15])}
    loss = kernel.indexer_kl(*args.values())
    assert loss == 0
    assert not any(x.any() for x in torch.autograd.grad(loss, leaves))


def test_index_keys_in_bf16_get_their_gradient_in_bf16(device):
    args = CASES["ragged"].inputs(torch.float32, device)
    args["k_SD"] = args["k_SD"].bfloat16().requires_grad_()
    grads = [torch.autograd.grad(fn(*args.values()), args["k_SD"])[0] for fn in (kernel.indexer_kl, exact)]
    assert grads[0].dtype == torch.bfloat16
    torch.testing.assert_close(*grads, rtol=1e-2, atol=1e-2)


def exact(*args):
    return reference.indexer_kl(*args[:3], args[3].float(), *args[4:])


def test_nothing_is_kept_but_two_numbers_for_each_selected_key(device):
    args = CASES["heads and widths over several blocks"].inputs(torch.float32, device)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        kernel.indexer_kl(**{**args, "q_TID": args["q_TID"].requires_grad_()})
    assert sum(kept) == sum(args[name].numel() for name in ("q_TID", "k_SD", "w_TI")) + 2 * args["indices_TK"].numel()


@pytest.mark.slow(reason="opcheck runs the interpreted kernels many times")
def test_opcheck(device):
    args = CASES["one token"].inputs(torch.float32, device)
    rows_TK = kernel.key_rows(args["indices_TK"], args["cu_query"], args["cu_key"])
    leaves = [args[name].requires_grad_() for name in ("q_TID", "k_SD", "w_TI")]
    inputs = args["q_THC"], args["kv_SC"], *leaves, rows_TK, 0.3, True
    torch.library.opcheck(torch.ops.arcforge_cuda.indexer_kl.default, inputs)

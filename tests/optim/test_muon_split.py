import pytest
import torch
from torch import Tensor, nn

from arcforge_core.contracts.hardware import OpCall
from arcforge_core.contracts.optimizer import ParameterRole, RoledParameter
from arcforge_core.ops import Ops
from arcforge_optim.configs import COEFFICIENTS, MuonConfig, MuonSplitConfig
from arcforge_optim.muon import Muon
from arcforge_optim.muon_split import MuonSplit

HEADS, NOPE, ROPE, VALUE, RANK = 4, 6, 2, 5, 16
Q_B = ParameterRole("head_matrix", num_heads=HEADS, rope_rows=ROPE)
KV_B = ParameterRole("head_matrix", num_heads=HEADS, parts=(NOPE, VALUE))


def attention() -> list[RoledParameter]:
    torch.manual_seed(0)
    q_b = nn.Parameter(torch.randn(HEADS * (NOPE + ROPE), RANK))
    kv_b = nn.Parameter(torch.randn(HEADS * (NOPE + VALUE), RANK))
    return [RoledParameter("q_b", q_b, Q_B), RoledParameter("kv_b", kv_b, KV_B)]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(item.parameter.shape, generator=generator) for item in attention()]


def train(optimizer: torch.optim.Optimizer, parameters: list[RoledParameter], steps: int = 4) -> None:
    for step in range(steps):
        for item, grad in zip(parameters, gradients(step), strict=True):
            item.parameter.grad = grad
        optimizer.step()


def blocks(q_b: Tensor, kv_b: Tensor) -> list[Tensor]:
    """Every matrix that is orthogonalised by itself, head by head, as views."""
    result = []
    for head in range(HEADS):
        q = q_b[head * (NOPE + ROPE) : (head + 1) * (NOPE + ROPE)]
        kv = kv_b[head * (NOPE + VALUE) : (head + 1) * (NOPE + VALUE)]
        result += [q, kv[:NOPE], kv[NOPE:]]
    return result


def slow_muon_split(config: MuonSplitConfig, weights: list[Tensor], steps: int = 4) -> None:
    """The per-head loop: one matrix, one head, one Newton-Schulz at a time; changes `weights`."""
    dtype = torch.bfloat16 if config.ns_dtype == "bf16" else torch.float32
    iterate = Ops().bind(OpCall("newton_schulz", "cpu", dtype, needs_grad=False))
    momenta = [torch.zeros_like(w) for w in blocks(*weights)]
    for step in range(steps):
        grads = blocks(*gradients(step))
        for w, grad, momentum in zip(blocks(*weights), grads, momenta, strict=True):
            momentum.lerp_(grad, 1 - config.momentum)
            update = grad.lerp(momentum, config.momentum).to(dtype)
            update *= 2.0 ** -(update.abs().max().double().log2().floor().item() + 1)
            update = iterate(update[None], COEFFICIENTS[config.coefficients], 1e-7)[0]
            w.mul_(1 - config.lr * config.weight_decay)
            w.add_(update, alpha=-config.lr * config.update_rms * max(w.shape) ** 0.5)


@pytest.mark.parametrize("ns_dtype", ["bf16", "fp32"])
def test_equals_a_slow_per_head_loop_bit_for_bit(ns_dtype):
    config = MuonSplitConfig(lr=0.02, ns_dtype=ns_dtype)
    parameters = attention()
    weights = [item.parameter.detach().clone() for item in parameters]
    train(MuonSplit(config, parameters, Ops()), parameters)
    slow_muon_split(config, weights)
    for item, weight in zip(parameters, weights, strict=True):
        assert torch.equal(item.parameter, weight), item.name


def test_equals_whole_muon_on_separate_parameters():
    parameters = attention()
    start, grads = [i.parameter.detach().clone() for i in parameters], [gradients(s) for s in range(3)]
    separate = [
        RoledParameter(str(i), nn.Parameter(w.clone()), ParameterRole("matrix")) for i, w in enumerate(blocks(*start))
    ]
    train(MuonSplit(MuonSplitConfig(), parameters), parameters, steps=3)
    optimizer = Muon(MuonConfig(), separate)
    for pair in grads:
        for item, grad in zip(separate, blocks(*pair), strict=True):
            item.parameter.grad = grad.clone()
        optimizer.step()
    joined = blocks(*[i.parameter.detach() for i in parameters])
    for item, weight in zip(separate, joined, strict=True):
        assert torch.equal(item.parameter, weight)


def test_permuting_the_heads_permutes_the_update():
    order = torch.tensor([2, 0, 3, 1])

    def permute(w: Tensor) -> Tensor:
        return w.view(HEADS, -1, RANK)[order].reshape(w.shape)

    plain, permuted = attention(), attention()
    for item in permuted:
        item.parameter.data.copy_(permute(item.parameter.data))
    a, b = MuonSplit(MuonSplitConfig(), plain), MuonSplit(MuonSplitConfig(), permuted)
    for step in range(3):
        for x, y, grad in zip(plain, permuted, gradients(step), strict=True):
            x.parameter.grad, y.parameter.grad = grad, permute(grad)
        a.step()
        b.step()
    for x, y in zip(plain, permuted, strict=True):
        assert torch.equal(permute(x.parameter.detach()), y.parameter)


def spread(optimizer: torch.optim.Optimizer, parameters: list[RoledParameter]) -> float:
    """Returns the largest distance from 1 of a singular value of a head's block, blocks scaled to mean 1."""
    before = [item.parameter.detach().clone() for item in parameters]
    for item, grad in zip(parameters, gradients(0), strict=True):
        # heads of very different gradient size, as in training: the case that Muon Split is for
        sizes_H11 = torch.logspace(-2, 0, HEADS)[:, None, None]
        item.parameter.grad = (grad.view(HEADS, -1, RANK) * sizes_H11).view_as(grad)
    optimizer.step()
    updates = [item.parameter.detach() - old for item, old in zip(parameters, before, strict=True)]
    values = [torch.linalg.svdvals(block) for block in blocks(*updates)]
    unit = 0.2 * RANK**0.5  # every block has fewer rows than RANK columns
    return max((v / unit - 1).abs().max().item() for v in values)


def test_head_blocks_of_the_update_are_near_orthonormal_and_whole_muon_does_not_give_it():
    fields = {"lr": 1.0, "weight_decay": 0.0, "coefficients": "quintic", "ns_dtype": "fp32"}
    split, whole = attention(), attention()
    assert spread(MuonSplit(MuonSplitConfig(**fields), split), split) < 0.05
    assert spread(Muon(MuonConfig(**fields), whole), whole) > 0.3


def test_gate_and_up_are_separate_and_experts_are_a_batch():
    torch.manual_seed(0)
    fused = nn.Parameter(torch.randn(3, 12, 10))
    singles = [nn.Parameter(w.clone()) for w in fused.detach().unflatten(1, (2, 6)).flatten(0, 1)]
    a = MuonSplit(MuonSplitConfig(), [RoledParameter("gate_up", fused, ParameterRole("expert", parts=(6, 6)))])
    b = MuonSplit(
        MuonSplitConfig(),
        [RoledParameter(str(i), p, ParameterRole("matrix")) for i, p in enumerate(singles)],
    )
    for _ in range(3):
        fused.grad = torch.randn_like(fused)
        for p, grad in zip(singles, fused.grad.unflatten(1, (2, 6)).flatten(0, 1), strict=True):
            p.grad = grad.clone()
        a.step()
        b.step()
    assert torch.equal(fused.detach().unflatten(1, (2, 6)).flatten(0, 1), torch.stack(singles))

import dataclasses
import io
import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim._muon import _zeropower_via_newtonschulz

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.contracts.hardware import YES, Kernel, OpCall
from arcforge_core.contracts.optimizer import ParameterRole, RoledParameter
from arcforge_core.errors import ConfigError
from arcforge_core.ops import Ops
from arcforge_core.ops.hardware import TorchCpu
from arcforge_optim import muon
from arcforge_optim.configs import COEFFICIENTS, MuonConfig
from arcforge_optim.muon import Muon

SHAPES = [(16, 16), (24, 16), (16, 40), (24, 16), (1, 9)]


class TorchIteration(TorchCpu):
    """A backend whose ``newton_schulz`` is torch's own, one matrix at a time."""

    def kernels(self) -> list[Kernel]:
        def iterate(x_BMN: Tensor, coefficients: list[tuple[float, float, float]], eps: float) -> Tensor:
            steps = len(coefficients)
            return torch.stack([_zeropower_via_newtonschulz(x, coefficients[0], steps, eps) for x in x_BMN])

        return [Kernel("newton_schulz", "test.torch", iterate, lambda call: YES)]


def roled(name: str, role: ParameterRole | str, *shape: int) -> RoledParameter:
    role = ParameterRole(role) if isinstance(role, str) else role
    return RoledParameter(name, nn.Parameter(torch.randn(*shape) * 0.1), role)


def small_model() -> list[RoledParameter]:
    torch.manual_seed(0)
    return [
        roled("embed", "embedding", 32, 16),
        roled("q_b", ParameterRole("head_matrix", num_heads=4, rope_rows=2), 32, 8),
        roled("kv_b", ParameterRole("head_matrix", num_heads=4, parts=(6, 4)), 40, 8),
        roled("o", "matrix", 16, 16),
        roled("router", "router", 4, 16),
        roled("gate_up", ParameterRole("expert", parts=(8, 8)), 4, 16, 16),
        roled("down", "expert", 4, 16, 8),
        roled("norm", "norm", 16),
        roled("head", "head", 32, 16),
    ]


def give_gradients(parameters: list[RoledParameter], step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for item in parameters:
        item.parameter.grad = scale * torch.randn(item.parameter.shape, generator=generator)


def run(optimizer: torch.optim.Optimizer, parameters: list[RoledParameter], steps: range) -> None:
    for step in steps:
        give_gradients(parameters, step)
        optimizer.step()


def clone(parameters: list[RoledParameter]) -> list[RoledParameter]:
    return [RoledParameter(i.name, nn.Parameter(i.parameter.detach().clone()), i.role) for i in parameters]


def assert_same(a: list[RoledParameter], b: list[RoledParameter]) -> None:
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x.parameter, y.parameter), x.name


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("scale", "adjust"), [("rms", "match_rms_adamw"), ("original", "original")])
def test_equals_torch_muon_bit_for_bit_with_the_same_iteration(scale, adjust, nesterov):
    torch.manual_seed(0)
    parameters = [roled(f"w{i}", "matrix", *shape) for i, shape in enumerate(SHAPES)]
    copies = clone(parameters)
    config = MuonConfig(lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=nesterov, scale=scale, ns_dtype="bf16")
    ours = Muon(config, parameters, Ops(TorchIteration(TorchCpuConfig())))
    theirs = torch.optim.Muon(
        [item.parameter for item in copies],
        lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=nesterov, eps=1e-7, adjust_lr_fn=adjust,
    )  # fmt: skip
    for step in range(6):
        run(ours, parameters, range(step, step + 1))
        run(theirs, copies, range(step, step + 1))
        assert_same(parameters, copies)
    for item, copied in zip(parameters, copies, strict=True):
        expected = theirs.state[copied.parameter]["momentum_buffer"]
        assert torch.equal(ours.state[item.parameter]["momentum_buffer"], expected)


def test_equals_torch_muon_with_the_default_ops():
    torch.manual_seed(0)
    parameters = [roled(f"w{i}", "matrix", *shape) for i, shape in enumerate(SHAPES)]
    copies = clone(parameters)
    ours = Muon(MuonConfig(lr=0.02, ns_dtype="bf16"), parameters)
    theirs = torch.optim.Muon([i.parameter for i in copies], lr=0.02, adjust_lr_fn="match_rms_adamw")
    run(ours, parameters, range(6))
    run(theirs, copies, range(6))
    for item, copied in zip(parameters, copies, strict=True):
        assert torch.equal(item.parameter, copied.parameter), item.name


@pytest.mark.parametrize("scale", ["rms", "original"])
def test_everything_outside_the_iteration_equals_torch_adamw(scale):
    parameters = small_model()
    copies = {item.name: item.parameter for item in clone(parameters)}
    optimizer = Muon(MuonConfig(lr=0.02, adamw_lr=3e-3, beta1=0.8, eps=1e-6, scale=scale), parameters)
    reference = torch.optim.AdamW(
        [
            {"params": [copies["router"], copies["head"]], "weight_decay": 0.1},
            {"params": [copies["embed"], copies["norm"]], "weight_decay": 0.0},
        ],
        lr=3e-3, betas=(0.8, 0.95), eps=1e-6, fused=True,
    )  # fmt: skip
    for step in range(5):
        give_gradients(parameters, step)
        for item in parameters:
            copies[item.name].grad = item.parameter.grad.clone()
        optimizer.step()
        reference.step()
    for item in parameters:
        if item.name in ("router", "head", "embed", "norm"):
            assert torch.equal(item.parameter, copies[item.name]), item.name


def by_hand(config: MuonConfig, matrix: Tensor, grads: list[Tensor]) -> Tensor:
    """One matrix, one step at a time, in the plainest way."""
    momentum, steps = torch.zeros_like(matrix), COEFFICIENTS[config.coefficients]
    dtype = torch.bfloat16 if config.ns_dtype == "bf16" else torch.float32
    iterate = Ops().bind(muon_call(dtype))
    rows, columns = matrix.shape
    scale = config.update_rms * math.sqrt(max(rows, columns))
    scale = scale if config.scale == "rms" else math.sqrt(max(1.0, rows / columns))
    for grad in grads:
        if config.momentum_style == "ema":
            momentum = momentum.lerp(grad, 1 - config.momentum)
            update = grad.lerp(momentum, config.momentum) if config.nesterov else momentum
        else:
            momentum = config.momentum * momentum + grad
            update = grad.add(momentum, alpha=config.momentum) if config.nesterov else momentum
        update = update.to(dtype)
        update = update * 2.0 ** -(update.abs().max().double().log2().floor().item() + 1)
        update = iterate(update[None], steps, 1e-7)[0]
        matrix = matrix * (1 - config.lr * config.weight_decay)
        matrix = matrix.add(update, alpha=-config.lr * scale)
    return matrix


def muon_call(dtype: torch.dtype) -> OpCall:
    return OpCall("newton_schulz", "cpu", dtype, needs_grad=False)


@pytest.mark.parametrize("limit", [1, 1 << 22])
@pytest.mark.parametrize("ns_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("style", ["ema", "heavy_ball"])
def test_batched_experts_and_parts_equal_a_loop_over_matrices(style, ns_dtype, limit, monkeypatch):
    monkeypatch.setattr(muon, "CHUNK_ELEMENTS", limit)
    config = MuonConfig(momentum_style=style, ns_dtype=ns_dtype, coefficients="quintic")
    parameters = small_model()
    start = {item.name: item.parameter.detach().clone() for item in parameters}
    grads: list[dict[str, Tensor]] = []
    optimizer = Muon(config, parameters, Ops())
    for step in range(3):
        give_gradients(parameters, step)
        grads.append({item.name: item.parameter.grad.clone() for item in parameters})
        optimizer.step()
    weights = {item.name: item.parameter.detach() for item in parameters}

    def check(name: str, pick) -> None:
        expected = by_hand(config, pick(start[name]), [pick(g[name]) for g in grads])
        assert torch.equal(pick(weights[name]), expected), name

    check("o", lambda w: w)
    check("q_b", lambda w: w)
    check("kv_b", lambda w: w.view(4, 10, 8)[:, :6].reshape(24, 8))  # keys of all heads are one matrix here
    check("kv_b", lambda w: w.view(4, 10, 8)[:, 6:].reshape(16, 8))
    for expert in range(4):
        check("gate_up", lambda w, e=expert: w[e, :8])
        check("gate_up", lambda w, e=expert: w[e, 8:])
        check("down", lambda w, e=expert: w[e])


def test_heavy_ball_is_the_same_update_up_to_rounding():
    a, b = small_model(), small_model()
    run(Muon(MuonConfig(ns_dtype="fp32", coefficients="quintic"), a), a, range(4))
    run(Muon(MuonConfig(ns_dtype="fp32", coefficients="quintic", momentum_style="heavy_ball"), b), b, range(4))
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.parameter, y.parameter, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(16, 16), (8, 64), (96, 12), (3, 32, 24)])
def test_update_has_the_asked_root_mean_square(shape):
    torch.manual_seed(0)
    item = roled("w", "matrix", *shape)
    before = item.parameter.detach().clone()
    config = MuonConfig(lr=0.5, weight_decay=0.0, update_rms=0.3, coefficients="quintic", ns_dtype="fp32")
    run(Muon(config, [item]), [item], range(1))
    rms = (item.parameter.detach() - before).square().mean().sqrt().item() / 0.5
    assert rms == pytest.approx(0.3, rel=0.04)


@pytest.mark.parametrize("ns_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-30, 1e20])
def test_any_size_of_gradient_gives_a_finite_update_of_the_right_size(scale, ns_dtype):
    parameters = [item for item in small_model() if item.role.role in ("matrix", "expert")]
    before = clone(parameters)
    optimizer = Muon(MuonConfig(lr=0.1, weight_decay=0.0, ns_dtype=ns_dtype), parameters)
    give_gradients(parameters, 0, scale)
    optimizer.step()
    for old, new in zip(before, parameters, strict=True):
        rms = (new.parameter - old.parameter).square().mean().sqrt().item() / 0.1
        assert rms == 0.0 if scale == 0.0 else 0.15 < rms < 0.24, new.name


def test_an_expert_without_tokens_keeps_moving_by_its_momentum_and_stays_finite():
    item = roled("experts", "expert", 2, 8, 8)
    idle = roled("idle", "expert", 1, 8, 8)
    idle_start = idle.parameter.detach().clone()
    optimizer = Muon(MuonConfig(weight_decay=0.0), [item, idle])
    for step in range(3):
        before = item.parameter.detach().clone()
        give_gradients([item, idle], step)
        idle.parameter.grad = torch.zeros_like(idle.parameter)
        if step:
            item.parameter.grad[1] = 0.0
        momentum = optimizer.state[item.parameter]["momentum_buffer"][1].clone()
        optimizer.step()
        assert not torch.equal(item.parameter[1], before[1])
    assert torch.equal(
        optimizer.state[item.parameter]["momentum_buffer"][1], momentum.lerp(torch.zeros(8, 8), 1 - 0.95)
    )
    assert torch.equal(idle.parameter, idle_start)
    assert item.parameter.isfinite().all()


def test_a_parameter_without_gradient_is_left_alone_and_has_state():
    parameters = small_model()
    optimizer = Muon(MuonConfig(), parameters)
    assert len(optimizer.state) == len(parameters)
    before = clone(parameters)
    give_gradients(parameters, 0)
    for item in parameters:
        item.parameter.grad = None if item.name in ("o", "down", "embed") else item.parameter.grad
    optimizer.step()
    for old, new in zip(before, parameters, strict=True):
        assert torch.equal(old.parameter, new.parameter) == (new.name in ("o", "down", "embed")), new.name


def test_gradients_are_not_changed():
    parameters = small_model()
    optimizer = Muon(MuonConfig(), parameters)
    give_gradients(parameters, 0)
    grads = [item.parameter.grad.clone() for item in parameters]
    optimizer.step()
    for item, grad in zip(parameters, grads, strict=True):
        assert torch.equal(item.parameter.grad, grad)


def test_a_gradient_of_other_strides_counts_the_same():
    a, b = roled("w", "matrix", 6, 10), None
    b = clone([a])[0]
    grad = torch.randn(10, 6).T
    a.parameter.grad, b.parameter.grad = grad, grad.contiguous()
    Muon(MuonConfig(), [a]).step()
    Muon(MuonConfig(), [b]).step()
    assert torch.equal(a.parameter, b.parameter)


def test_groups_by_role_with_names_and_base_rates():
    config = MuonConfig(lr=2e-3, adamw_lr=5e-4)
    groups = {g["rule"] + str(g["weight_decay"]): g for g in Muon(config, small_model()).param_groups}
    assert groups["muon0.1"]["names"] == ["q_b", "kv_b", "o", "gate_up", "down"]
    assert groups["adamw0.1"]["names"] == ["router", "head"]
    assert groups["adamw0.0"]["names"] == ["embed", "norm"]
    assert [g["base_lr"] for g in groups.values()] == [2e-3, 5e-4, 5e-4]


@pytest.mark.parametrize("role", ["head", "router"])
def test_head_and_router_can_be_given_to_muon(role):
    groups = Muon(MuonConfig(**{role: "muon"}), small_model()).param_groups
    assert role in groups[0]["names"] and groups[0]["rule"] == "muon"


def test_without_its_own_rate_adamw_takes_lr():
    assert {g["base_lr"] for g in Muon(MuonConfig(lr=0.01), small_model()).param_groups} == {0.01}


def test_the_schedule_acts_through_lr():
    parameters = small_model()
    optimizer = Muon(MuonConfig(), parameters)
    before = clone(parameters)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    run(optimizer, parameters, range(1))
    assert_same(before, parameters)


def test_resume_in_the_middle_is_bitwise():
    parameters = small_model()
    optimizer = Muon(MuonConfig(), parameters)
    run(optimizer, parameters, range(3))
    saved, file = clone(parameters), io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    run(optimizer, parameters, range(3, 6))
    resumed = Muon(MuonConfig(), saved)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    run(resumed, saved, range(3, 6))
    assert_same(parameters, saved)


def test_reset_state_equals_a_new_optimizer():
    parameters = small_model()
    optimizer = Muon(MuonConfig(), parameters)
    run(optimizer, parameters, range(2))
    copies = clone(parameters)
    optimizer.reset_state()
    run(optimizer, parameters, range(2, 4))
    run(Muon(MuonConfig(), copies), copies, range(2, 4))
    assert_same(parameters, copies)


def test_step_runs_a_closure_with_gradients():
    item = roled("w", "matrix", 4, 4)
    optimizer = Muon(MuonConfig(), [item])

    def closure() -> float:
        loss = item.parameter.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) > 0
    assert item.parameter.grad is not None


def test_frozen_parameters_are_left_out():
    parameters = small_model()
    parameters[3].parameter.requires_grad_(False)
    optimizer = Muon(MuonConfig(), parameters)
    assert all("o" not in group["names"] for group in optimizer.param_groups)


def test_half_precision_weights_are_refused():
    item = RoledParameter("w", nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16)), ParameterRole("matrix"))
    with pytest.raises(ConfigError, match=r"w is torch\.bfloat16; weights must be float32"):
        Muon(MuonConfig(), [item])


def test_other_devices_take_more_matrices_at_a_time(monkeypatch):
    monkeypatch.setattr(muon, "CHUNK_ELEMENTS", 128)  # one matrix of an expert
    calls = {}
    for device in ("cpu", "meta"):
        parameters = [
            dataclasses.replace(item, parameter=nn.Parameter(item.parameter.to(device))) for item in small_model()
        ]
        calls[device] = len(Muon(MuonConfig(ns_dtype="fp32"), parameters, Ops()).chunks)
    assert calls["meta"] < calls["cpu"]

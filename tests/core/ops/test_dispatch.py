import logging
from types import SimpleNamespace

import pytest
import torch

from arcforge_core.contracts.device import Capabilities
from arcforge_core.contracts.hardware import YES, Kernel, OpCall, Verdict
from arcforge_core.errors import ConfigError
from arcforge_core.ops import dispatch, reference
from arcforge_core.ops.dispatch import Ops, default_ops, dispatch_mode


@pytest.fixture(autouse=True)
def automatic(monkeypatch):
    monkeypatch.delenv("ARCFORGE_DISPATCH", raising=False)


def kernel(name: str, priority: int = 0, verdict: Verdict = YES, op: str = "rms_norm") -> Kernel:
    return Kernel(op, name, lambda *_: name, lambda _: verdict, priority)


def ops_of(*kernels: Kernel) -> Ops:
    return Ops(SimpleNamespace(name="fake", kernels=lambda: list(kernels)))


CALL = OpCall("rms_norm", "cpu", torch.float32, sizes={"width": 8})


def chosen(ops: Ops, call: OpCall = CALL) -> str:
    ops.bind(call)
    return next(choice.kernel for choice in ops.choices.values() if choice.call == call)


def test_the_highest_priority_wins_whatever_the_order():
    low, high = kernel("low", 1), kernel("high", 2)
    for kernels in ((low, high), (high, low)):
        assert ops_of(*kernels).bind(CALL)() == "high" and chosen(ops_of(*kernels)) == "high"


def test_a_kernel_that_says_no_is_passed_over_and_its_reason_kept():
    ops = ops_of(kernel("best", 9, Verdict(False, "width 8 is odd")), kernel("next", 5), kernel("unasked", 1))
    assert ops.bind(CALL)() == "next"
    (choice,) = ops.choices.values()
    assert choice.kernel == "next" and choice.rejected == (("best", "width 8 is odd"),)


def test_the_reference_covers_what_no_kernel_does():
    ops = ops_of(kernel("norm"), kernel("swiglu", verdict=Verdict(False, "no"), op="swiglu"))
    assert ops.bind(OpCall("swiglu", "cpu", torch.float32)) is reference.swiglu
    assert ops.bind(OpCall("rope", "cpu", torch.float32)) is reference.rope
    assert Ops(None).bind(CALL) is reference.rms_norm and chosen(Ops(None)) == "reference"


def test_a_kernel_is_asked_about_the_very_call():
    asked = []

    def supports(call):
        asked.append(call)
        return YES

    ops = ops_of(Kernel("rms_norm", "k", lambda *_: None, supports))
    ops.binder(torch.bfloat16, "cuda:1", needs_grad=False)("rms_norm", width=3)
    assert asked == [OpCall("rms_norm", "cuda", torch.bfloat16, False, {"width": 3})]


def test_each_kind_of_call_is_logged_once_with_the_reasons(caplog):
    ops = ops_of(kernel("best", 9, Verdict(False, "too wide")), kernel("next"))
    with caplog.at_level(logging.INFO, logger="arcforge.ops"):
        for _ in range(3):
            ops.bind(CALL)
        ops.bind(OpCall("rms_norm", "cpu", torch.bfloat16, sizes={"width": 8}))
    assert [r.getMessage() for r in caplog.records] == [
        "rms_norm [cpu, torch.float32] -> next; rejected best: too wide",
        "rms_norm [cpu, torch.bfloat16] -> next; rejected best: too wide",
    ]
    assert len(ops.choices) == 2


def test_the_environment_forces_the_references(monkeypatch):
    monkeypatch.setenv("ARCFORGE_DISPATCH", "reference")
    assert ops_of(kernel("fast")).bind(CALL) is reference.rms_norm
    monkeypatch.setenv("ARCFORGE_DISPATCH", "auto")
    assert ops_of(kernel("fast")).bind(CALL)() == "fast"


@pytest.mark.parametrize("value", ["refrence", "", "AUTO"])
def test_other_values_of_the_environment_are_refused(monkeypatch, value):
    monkeypatch.setenv("ARCFORGE_DISPATCH", value)
    for build in (dispatch_mode, lambda: Ops(None), lambda: ops_of(kernel("fast"))):
        with pytest.raises(ConfigError, match=f"ARCFORGE_DISPATCH='{value}': must be auto, safe or reference"):
            build()


FAULTY = {
    "unknown op": (kernel("acme", op="rms_nrm"), "core has no op 'rms_nrm'; did you mean 'rms_norm'?"),
    "swapped": (Kernel("rms_norm", "acme", lambda weight, x, eps: 0, lambda _: YES), "takes (weight, x, eps)"),
    "too few": (Kernel("rms_norm", "acme", lambda x: 0, lambda _: YES), "takes (x)"),
    "one more": (
        Kernel("rms_norm", "acme", lambda x, weight, eps, block: 0, lambda _: YES),
        "takes (x, weight, eps, b",
    ),
    "by name only": (
        Kernel("rms_norm", "acme", lambda x, weight, *, eps: 0, lambda _: YES),
        "takes (x, weight, *, eps)",
    ),
    "no function": (Kernel("rms_norm", "acme", None, lambda _: YES), "its function is None"),
    "no number": (kernel("acme", "high"), "its priority is 'high', and not a whole number"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_faulty_kernel_is_reported_and_not_taken(caplog, fault):
    faulty, reason = FAULTY[fault]
    assert reason in dispatch.fault_of(faulty)
    ops = ops_of(faulty, kernel("swiglu", op="swiglu"))
    assert ops.bind(CALL) is reference.rms_norm
    assert ops.bind(OpCall("swiglu", "cpu", torch.float32))() == "swiglu"
    assert f"hardware fake: kernel acme is not used: {dispatch.fault_of(faulty)}" in caplog.text


def raises(call):
    raise RuntimeError("no chip")


@pytest.mark.parametrize(
    ("supports", "reason"),
    [(raises, "its supports raised RuntimeError: no chip"), (bool, "its supports returned True instead of a Verdict")],
)
def test_a_kernel_that_fails_to_say_what_it_supports_is_reported_and_not_taken(caplog, supports, reason):
    ops = ops_of(Kernel("rms_norm", "acme", lambda *_: "acme", supports, 5), kernel("next", 1))
    assert ops.bind(CALL)() == "next"
    assert f"kernel acme is not used for rms_norm: {reason}" in caplog.text
    assert [choice.rejected for choice in ops.choices.values()] == [(("acme", reason),)]


def test_further_arguments_with_defaults_and_other_names_are_no_fault():
    for function in (lambda x, weight, eps, block=8: 0, lambda a_TD, b_D, c: 0, lambda *args: 0, max):
        assert dispatch.fault_of(Kernel("rms_norm", "acme", function, lambda _: YES)) == ""


def test_kernels_of_one_priority_are_reported_and_not_taken(caplog):
    twins = kernel("one", 5), kernel("two", 5)
    for kernels in (twins, twins[::-1]):
        assert ops_of(*kernels, kernel("next", 1)).bind(CALL)() == "next"
        assert ops_of(*kernels).bind(CALL) is reference.rms_norm
    assert "rms_norm: one and two have the same priority, 5: none of them is used" in caplog.text
    assert dispatch.ties([*twins, kernel("next", 1)]) == ["rms_norm: one and two have the same priority, 5"]
    other = kernel("two", 5, Verdict(False, "width 8 is odd"))
    assert ops_of(twins[0], other).bind(CALL)() == "one", "only one of them supports the call"


def test_default_ops_are_those_of_automatic_hardware(monkeypatch):
    from arcforge_core.ops import hardware

    asked = []

    def select(name):
        asked.append(name)
        return SimpleNamespace(name="fake", kernels=lambda: [kernel("fast")])

    monkeypatch.setattr(hardware, "select_hardware", select)
    dispatch.default_ops.cache_clear()
    try:
        assert default_ops() is default_ops() and chosen(default_ops()) == "fast" and asked == ["auto"]
    finally:
        dispatch.default_ops.cache_clear()


def test_a_safe_run_leaves_calls_to_the_reference_where_a_kernel_raises(monkeypatch, caplog):
    def only_small(x, weight, eps):
        if len(x) > 2:
            raise RuntimeError("too many rows for the chip")
        return reference.rms_norm(x, weight, eps) * 2

    broken, weight = Kernel("rms_norm", "acme.norm", only_small, lambda _: YES), torch.ones(8)
    rows = torch.randn(5, 8)
    with pytest.raises(RuntimeError, match="too many rows"):
        ops_of(broken).bind(CALL)(rows, weight, 1e-5)
    monkeypatch.setenv("ARCFORGE_DISPATCH", "safe")
    norm = ops_of(broken).bind(CALL)
    assert torch.equal(norm(rows, weight, 1e-5), reference.rms_norm(rows, weight, 1e-5))
    assert (
        "kernel acme.norm of rms_norm (width=8) on cpu raised RuntimeError: too many rows for the chip; the reference "
        "runs for shapes (5, 8), (8,)" in caplog.text
    )
    assert torch.equal(norm(rows[:2], weight, 1e-5), 2 * reference.rms_norm(rows[:2], weight, 1e-5))


# ---- lazy kernels and limits ---------------------------------------------------------------------------------------


LAZY = "arcforge_core.ops.reference:rms_norm"


def test_a_kernel_by_import_string_is_imported_when_it_is_bound():
    ops = ops_of(Kernel("rms_norm", "lazy", LAZY, lambda _: YES))
    rows, weight = torch.randn(2, 8), torch.ones(8)
    assert torch.equal(ops.bind(CALL)(rows, weight, 1e-5), reference.rms_norm(rows, weight, 1e-5))
    assert chosen(ops) == "lazy"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("arcforge_core.ops.reference.rms_norm", "is not of the form 'package.module:attribute'"),
        ("acme_nowhere:rms_norm", "cannot import 'acme_nowhere:rms_norm': ModuleNotFoundError"),
        ("arcforge_core.ops.reference:rms_nrm", "cannot import 'arcforge_core.ops.reference:rms_nrm': AttributeError"),
        ("arcforge_core.ops.reference:swiglu", "it takes (gate, up)"),
    ],
)
def test_an_import_string_that_names_no_such_kernel_is_reported_and_the_next_one_runs(path, reason, caplog):
    faulty = Kernel("rms_norm", "acme", path, lambda _: YES, 5)
    assert reason in dispatch.fault_of(faulty)
    assert ops_of(faulty, kernel("next", 1)).bind(CALL)() == "next"
    assert "kernel acme is not used: " in caplog.text and reason in caplog.text


def few(x, weight, eps):
    return YES if len(x) <= 2 else Verdict(False, f"{len(x)} rows are over 2")


def scaled(factor):
    return lambda x, weight, eps: reference.rms_norm(x, weight, eps) * factor


def test_a_call_beyond_a_kernel_s_limits_runs_the_next_kernel_and_is_told_once(caplog):
    small = Kernel("rms_norm", "small", scaled(2), lambda _: YES, 5, limits=few)
    rows, weight = torch.randn(3, 8), torch.ones(8)
    truth = reference.rms_norm(rows, weight, 1e-5)
    alone = ops_of(small).bind(CALL)
    with caplog.at_level(logging.INFO, logger="arcforge.ops"):
        for _ in range(2):
            assert torch.equal(alone(rows, weight, 1e-5), truth)
    assert caplog.text.count("rms_norm: small leaves shapes (3, 8), (8,) to another: 3 rows are over 2") == 1
    assert torch.equal(alone(rows[:2], weight, 1e-5), 2 * truth[:2])
    both = ops_of(small, Kernel("rms_norm", "next", scaled(3), lambda _: YES, 1)).bind(CALL)
    assert torch.equal(both(rows, weight, 1e-5), 3 * truth) and torch.equal(both(rows[:2], weight, 1e-5), 2 * truth[:2])


def test_a_chip_with_small_grids_leaves_more_rows_to_the_reference():
    chip = SimpleNamespace(name="fake", capabilities=Capabilities(tokens=2), kernels=lambda: [double])
    double = Kernel("rms_norm", "double", scaled(2), lambda _: YES)
    norm, rows, weight = Ops(chip).bind(CALL), torch.randn(3, 8), torch.ones(8)
    truth = reference.rms_norm(rows, weight, 1e-5)
    assert torch.equal(norm(rows, weight, 1e-5), truth) and torch.equal(norm(rows[:2], weight, 1e-5), 2 * truth[:2])


def test_what_a_kernel_raises_names_the_op_its_sizes_the_chip_and_the_shapes():
    def broken(x, weight, eps):
        raise RuntimeError("error 507011")

    with pytest.raises(RuntimeError, match="error 507011") as caught:
        ops_of(Kernel("rms_norm", "acme.norm", broken, lambda _: YES)).bind(CALL)(torch.ones(3, 8), torch.ones(8), 1.0)
    assert caught.value.__notes__ == [
        "kernel acme.norm of rms_norm (width=8) on cpu raised this for shapes (3, 8), (8,); ARCFORGE_DISPATCH=safe "
        "uses the reference"
    ]

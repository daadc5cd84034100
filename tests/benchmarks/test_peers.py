import importlib.util
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_peers", BENCHMARKS / "_peers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_peers"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def clock(*seconds: float) -> Callable[[], float]:
    """Returns what takes these seconds, call after call, the last ones for ever."""
    left = list(seconds)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_the_fastest_setting_that_fits_is_taken_and_the_others_are_listed(peers: ModuleType) -> None:
    runs = {"slow first": clock(3.0, 1.0), "steady": clock(2.0), "compiled": clock(60.0, 0.5), "hopeless": clock(9.0)}

    def prepare(name: str) -> Callable[[], float]:
        if name == "wrong":
            raise peers.Unfit("loss 3 is not 2")
        if name == "refused":
            raise RuntimeError("no kernel for this machine")
        return runs[name]

    candidates = ["steady", "slow first", "hopeless", "wrong", "refused"]
    swept = peers.sweep(candidates, prepare, lambda best: ["compiled"] if best == "slow first" else [])
    assert swept.best == "compiled"
    assert swept.run() == 0.5
    assert swept.tried["slow first"] == 1.0
    reasons = {name: why for name, why in swept.tried.items() if isinstance(why, str)}
    assert reasons.keys() == {"hopeless", "wrong", "refused"}
    assert (
        "too slow" in reasons["hopeless"]
        and "loss 3 is not 2" in reasons["wrong"]
        and "no kernel" in reasons["refused"]
    )
    with pytest.raises(SystemExit, match="nothing to compare"):
        peers.sweep(["wrong"], prepare)


def test_every_combination_of_attention_experts_and_dtype_is_a_candidate(peers: ModuleType) -> None:
    found = peers.peers(("fp32", "bf16"), peers.EXPERTS, batch=8)
    assert len({str(peer) for peer in found}) == 3 * 2 * 2
    assert {peer.attention for peer in found} == {"sdpa", "eager", "flex_attention"}
    assert str(peers.Peer("sdpa", "eager", "bf16", True, 4)) == "sdpa+eager+bf16+compile+by 4"


def test_trl_is_tried_in_every_precision_and_briefly_in_all_settings_of_one() -> None:
    alone, three = import_module("rl_vs_trl").alone, ("bf16", "autocast", "fp32")
    every = {(one.precision, one.attention, one.accumulate) for one in alone(three, False)}
    assert len(every) == 3 * 3 * 2 and {one.side for one in alone(three, True)} == {"trl"}
    brief = [(one.precision, one.attention, one.accumulate) for one in alone(three, True)]
    assert set(brief) < every and [name for name, *_ in brief] == ["bf16"] * 6 + ["autocast", "fp32"]
    assert len(alone(("fp32",), True)) == 6 and {one.precision for one in alone(("fp32",), False)} == {"fp32"}


@pytest.mark.parametrize(("instructions", "fast", "first", "count"), [
    (True, True, "bf16", 3), (True, False, "fp32", 3), (False, False, "fp32", 1),
])  # fmt: skip
def test_bf16_is_tried_where_it_has_instructions_even_if_its_products_are_slower(
    instructions: bool, fast: bool, first: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = import_module("rl_vs_trl")
    monkeypatch.setattr(benchmark, "has_bf16", lambda: instructions)
    monkeypatch.setattr(benchmark, "fast_bf16", lambda device: fast)
    found = benchmark.precisions_here()
    assert found[0] == first and len(found) == len(set(found)) == count


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.name)
def test_only_the_helper_chooses_settings_of_transformers(path: Path) -> None:
    """A benchmark that names an attention of its own may not compare with the peer at its best."""
    if path.name != "_peers.py":
        assert "attn_implementation" not in path.read_text()

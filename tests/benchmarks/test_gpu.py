"""The benchmark of one GPU, as far as it needs none: refusal, items that crash or hang, tables, parts of a step."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module as module
from pathlib import Path

import pytest
import torch

from support.waiting import wait_until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = """
import json, os, sys, time
def tell(item, ended, **result):
    print(json.dumps({"item": item, "ended": ended, "result": result}), flush=True)
for item in sys.argv[1:]:
    if item == "crash":
        tell(item, False, known=1)
        sys.exit("no more")
    if item == "hang":
        time.sleep(60)
    tell(item, True, value=item)
    if item == "breaks":
        os._exit(3)
"""
KERNEL = {
    "shape": "[2, 4]",
    "tolerance": 0.02,
    "ms": 2.0,
    "floor_ms": 1.0,
    "peers": {
        "eager": {"ms": 5.0, "difference": 0.001},
        "compile": {"ms": 3.0, "difference": 0.001},
        "wrong": {"ms": 0.1, "difference": 0.5},
        "absent": {"error_text": "ImportError: no module"},
        "arcforge torch": {"ms": 0.5, "difference": 0.0},
    },
}


def test_without_a_device_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "kernels"])
    with pytest.raises(SystemExit, match="needs a CUDA device, and torch finds none") as refusal:
        module("gpu").main()
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--warm", "--only", "kernels", "step"])
    with pytest.raises(SystemExit, match="2"):
        module("gpu").main()
    assert "\n" not in str(refusal.value)


@pytest.mark.slow(reason="waits until a process has been silent for long enough")
def test_a_crash_and_a_hang_lose_no_other_item(tmp_path: Path) -> None:
    script = tmp_path / "items.py"
    script.write_text(SCRIPT)
    items = ["one", "crash", "two", "breaks", "three", "hang", "four"]
    found = dict(module("_gpu_processes").results_of([sys.executable, str(script)], items, 8.0, broken=3))
    assert list(found) == items
    assert [found[name]["value"] for name in ("one", "two", "breaks", "three", "four")] == [
        "one", "two", "breaks", "three", "four",
    ]  # fmt: skip
    assert found["crash"]["known"] == 1 and "ended with 1: no more" in found["crash"]["error_text"]
    assert "nothing for 8 s" in found["hang"]["error_text"]


def test_being_ended_ends_the_processes(tmp_path: Path) -> None:
    script, started = tmp_path / "items.py", tmp_path / "started"
    script.write_text(f"import os, time\nopen({str(started)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    body = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from _gpu_processes import end_when_asked, results_of
end_when_asked()
list(results_of([sys.executable, {str(script)!r}], ["one"], 60.0, 3))
"""
    parent = subprocess.Popen([sys.executable, "-c", body])
    while not (started.exists() and started.read_text()):
        time.sleep(0.05)
    parent.terminate()
    assert parent.wait(timeout=20) == 143
    state = Path(f"/proc/{started.read_text()}/stat")

    def ended() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            return state.read_text().split()[2] in "ZX"
        return True

    wait_until(ended, 20)


def test_only_a_third_party_whose_result_is_ours_is_the_best_peer() -> None:
    kernels = module("_gpu_kernels")
    assert kernels.best_peer(KERNEL) == ("compile", 3.0)
    text = kernels.row("some kernel", KERNEL)
    assert text.splitlines()[0].split() == ["some", "kernel", "2.000", "3.000", "compile", "1.000", "1.50", "2.00"]
    assert "wrong left out: its result differs by 5.0e-01" in text and "absent left out: ImportError" in text
    assert kernels.ratios({"some kernel": KERNEL}) == {"some_kernel_vs_peer": 1.5, "some_kernel_over_floor": 2.0}


def test_a_kernel_without_a_result_has_a_row(tmp_path: Path) -> None:
    broken = {"error_text": "the process ended with -11: "}
    assert "ended with -11" in module("_gpu_kernels").row("some", broken)
    assert "ended with -11" in module("_gpu_verify").row("some", broken)
    assert "ended with -11" in module("_gpu_step").row("some", broken)
    assert "ended with -11" in module("_gpu_decode").row("some", broken)
    report = {"kernels": {"a": broken, "b": KERNEL}, "verify": {"c": {"verdict": "fail"}, "d": {"verdict": "pass"}}}
    assert module("gpu").failures(report) == ["verify c", "kernels a"]


def test_differences_are_relative_and_indices_are_compared_as_sets() -> None:
    difference = module("_gpu_clock").difference
    one = torch.tensor([3.0, 4.0])
    assert difference(one, one) == 0.0
    assert difference((1.1 * one, one), (one, one)) == pytest.approx(0.1, rel=1e-5)
    rows = torch.tensor([[0, 2, -1], [1, 3, 4]])
    assert difference(rows, rows) == 0.0
    assert difference(rows, torch.tensor([[0, 2, -1], [1, 3, 5]])) == pytest.approx(0.2)


def test_a_floor_is_the_larger_of_products_and_bytes() -> None:
    rates = module("_gpu_clock").Rates(flops_per_s=1e12, bytes_per_s=1e9)
    assert rates.floor_ms(2e9, 1e3) == pytest.approx(2.0)
    assert rates.floor_ms(1e3, 5e6) == pytest.approx(5.0)


def test_a_step_is_taken_apart_by_kind_and_what_is_left_is_idle() -> None:
    kernels = [("nvjet_tst_gemm", 0.0, 60.0), ("sparse_forward", 50.0, 70.0), ("multi_tensor_adam", 90.0, 100.0)]
    about = module("_gpu_profile").grouped(kernels, top=2)
    assert about["span_ms"] == pytest.approx(0.1) and about["launches"] == 3
    assert {name: part["share"] for name, part in about["kinds"].items()} == pytest.approx(
        {"matrix products": 0.6, "attention": 0.2, "optimizer": 0.1, "idle": 0.2}
    )
    assert [kernel["name"] for kernel in about["top"]] == ["nvjet_tst_gemm", "sparse_forward"]
    assert module("_gpu_profile").grouped([]) == {}


def test_selected_keys_are_visible_and_in_order() -> None:
    rows = module("_gpu_attention").select(4, 6, 5)
    for row, visible in zip(rows.tolist(), (3, 4, 5, 6), strict=True):
        chosen = [key for key in row if key >= 0]
        assert chosen == sorted(set(chosen)) and len(chosen) == min(5, visible) and max(chosen) < visible


def test_every_part_names_its_items() -> None:
    gpu = module("gpu")
    for name in gpu.PARTS:
        assert len(gpu.part(name).names(False)) > 3
    assert json.dumps(gpu.about_machine())

"""`tiny` with DSA trains and serves on a simulated NPU through torch_npu's operators, and is the host's model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(
    reason="trains and serves a model in a process of its own, which can have one such device"
)
SELECT, ATTEND = "npu_lightning_indexer", "npu_sparse_flash_attention"
ALWAYS = {ATTEND, "npu_rms_norm", "npu_rotary_mul", "npu_grouped_matmul", "npu_moe_token_unpermute"}
SERVED = {*ALWAYS, "npu_moe_gating_top_k", "npu_moe_init_routing_v2"}
INTEGERS = {"npu_dynamic_quant", "npu_quant_matmul", "npu_swiglu_quant"}


def run(*parts, script="model_checks.py"):
    command = [sys.executable, Path(__file__).parent / script, *parts]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def apart(served):
    pairs = zip(served["npu"], served["host"], strict=True)
    return max(abs(a - b) for ours, host in pairs for a, b in zip(ours, host, strict=True))


def test_it_trains_and_serves_w4a8():
    found = run("trained", "w4a8")
    trained, served = found["trained"], found["w4a8"]
    for name, (ours, host) in trained["losses"].items():
        assert abs(ours - host) <= 2e-2 * abs(host), name
    for name, (ours, host) in trained["errors"].items():  # relative to float32; the host's own bfloat16 beside it
        assert ours <= 1.1 * host + 0.01, (name, ours, host)
    assert any("indexer" in name for name in trained["errors"])
    backward = {f"{name}_backward" for name in ("npu_rms_norm", "npu_rotary_mul", "npu_swiglu")}
    backward |= {f"npu_moe_token_{way}_grad_v2" for way in ("permute", "unpermute")}
    loss = {"npu_sparse_lightning_indexer_grad_kl_loss", f"{ATTEND}_grad"}
    assert set(trained["calls"]) == {*ALWAYS, *backward, *loss, SELECT, "npu_swiglu", "npu_moe_token_permute"}
    assert apart(served) < 0.05
    assert set(served["calls"]) == {*SERVED, *INTEGERS, SELECT}
    assert served["packed"] == {"int4_columns": 2, "scale_bits": 2, "turned": 0}  # the one mixture, once
    assert set(served["in steps"].values()) == {0}


@pytest.mark.nightly
def test_it_serves_bfloat16_int8_keys_and_the_fused_prologue():
    found = run("bf16", "int8 keys", "prologue")
    fused = {*SERVED, SELECT, "npu_swiglu", "npu_mla_prolog_v3"}
    assert apart(found["prologue"]) < 0.05 and set(found["prologue"]["calls"]) == fused
    assert apart(found["bf16"]) < 0.03 and set(found["bf16"]["calls"]) == {*SERVED, SELECT, "npu_swiglu"}
    # three matrices in each of two layers and the MTP module
    for part, turned in (("prologue", 9), ("bf16", 0), ("int8 keys", 0)):
        assert found[part]["packed"] == {"int4_columns": 0, "scale_bits": 0, "turned": turned}, part
        assert set(found[part]["in steps"].values()) == {0}, part
    rounded = found["int8 keys"]  # selects a few other keys
    assert apart(rounded) < 0.3 and set(rounded["calls"]) == {*SERVED, *INTEGERS, "npu_quant_lightning_indexer"}


@pytest.mark.nightly
def test_a_whole_run_trains_on_the_npu_and_its_model_is_served(tmp_path):
    found = run(str(tmp_path), script="run_checks.py")
    assert len(found["npu"]) == len(found["host"]) == 3
    for ours, host in zip(found["npu"], found["host"], strict=True):
        assert ours == pytest.approx(host, rel=5e-2)
    assert {"npu_sparse_lightning_indexer_grad_kl_loss", f"{ATTEND}_grad", SELECT} <= set(found["trained by"])
    # logits between 4 and 8 are 1/32 apart in bfloat16, and each processor's sums round some to a neighbour
    assert found["npu served"] == pytest.approx(found["host served"], abs=3 / 32)
    assert {*SERVED, *INTEGERS} <= set(found["served by"])

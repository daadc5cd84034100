"""Both calibrations that tests run with: each figure is set, and they choose differently."""

import os

from arcforge_core.ops import calibration
from arcforge_core.ops.calibration import FIGURES, forced
from support.calibrations import FORCED, VARIABLE


def test_each_figure_is_forced_to_both_sides(monkeypatch):
    assert VARIABLE == calibration.VARIABLE
    found = {}
    for name in ("float32", "bfloat16"):
        monkeypatch.setenv(VARIABLE, FORCED[name])
        found[name] = forced()
        assert set(found[name]) == set(FIGURES), "a new figure needs both values"
    one, other = found.values()
    assert (one["bf16"] > one["fp32"]) != (other["bf16"] > other["fp32"])
    assert one["fp32_expert_rows"] != other["fp32_expert_rows"] and one["fp32_rows"] != other["fp32_rows"]
    assert (one["int8"] > one["int8_in_fp32"]) != (other["int8"] > other["int8_in_fp32"])
    assert (one["pairs"] > one["wide_pairs"]) != (other["pairs"] > other["wide_pairs"])


def test_this_run_is_forced(pytestconfig):
    chosen = pytestconfig.getoption("--calibration")
    assert chosen == "measured" or os.environ[VARIABLE]

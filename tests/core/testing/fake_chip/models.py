"""Run by test_faults.py in a process of its own: prints what the kit finds on the chip, clean and with faults."""

import json
import sys

import torch

from arcforge_core.testing import model_checks
from arcforge_core.testing.device_checks import check_device, fault_in
from arcforge_core.testing.fake_chip.backend import FakeChip
from arcforge_core.testing.fake_chip.device import install
from arcforge_core.testing.fake_chip.faults import injected

install("npu")
backend, found = FakeChip(), {}
probes = {
    "training": lambda _, seed=0: model_checks.curve_fault(backend, torch.float32, seed),
    "save": lambda _, seed=0: model_checks.save_fault(backend, seed),
    "weight update": lambda _, seed=0: model_checks.update_fault(backend, seed),
    "greedy decode": lambda _, seed=0: model_checks.decode_fault(backend, seed),
    "device": lambda _: claimed(),
    "false yes": lambda _: claimed(float64=True, pinned_memory=True),
    "false no": lambda _: claimed(int64=False, bf16=False),
}


def claimed(**abilities):
    """Returns what the kit says about the device of a chip with these claims."""
    found = check_device(FakeChip(**{"fp8": True, "fused_adamw": True, **abilities}))
    return "; ".join(f"{result.op}: {result.reason}" for result in found if result.verdict != "pass")


for check in ("training", "save", "weight update", "greedy decode") if len(sys.argv) > 2 else ():
    for seed in range(int(sys.argv[2])):
        found[f"{check}, seed {seed}"] = fault_in(lambda d, check=check, seed=seed: probes[check](d, seed), "npu")
for check, fault in json.loads(sys.argv[1]):
    if fault is None:
        found[check] = fault_in(probes[check], "npu")
    else:
        with injected(fault):
            found[fault] = fault_in(probes[check], "npu")
print(json.dumps(found))

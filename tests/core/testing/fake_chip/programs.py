"""Run by test_program_faults.py in a process of its own: prints what the kit finds in autocast and compiled code."""

import json
import sys

from arcforge_core.testing import autocast_checks, compile_checks
from arcforge_core.testing.device_checks import fault_in
from arcforge_core.testing.fake_chip.backend import FakeChip
from arcforge_core.testing.fake_chip.device import install
from arcforge_core.testing.fake_chip.faults import injected

install("npu")
backend = FakeChip(autocast=True, compiler="fake_chip")
results = [*autocast_checks.check_autocast(backend), *compile_checks.check_compile(backend)]
found = {"clean": {r.op: r.reason for r in results}}
found["false no"] = [r.reason for r in autocast_checks.check_autocast(FakeChip())]
for kind, name, fault in json.loads(sys.argv[1]):
    with injected(fault):
        if kind == "autocast":
            said = fault_in(autocast_checks.PROBES[name], "npu")
        else:
            probe = compile_checks.PROBES[name]
            said = fault_in(lambda d, probe=probe: probe(compile_checks.Compiled("fake_chip", d)), "npu")
    found[fault] = said
print(json.dumps(found))

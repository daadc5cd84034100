"""Run by test_stream_faults.py in a process of its own: prints what the kit finds in streams, clean and with faults."""

import json
import sys

from arcforge_core.contracts.hardware import YES, Kernel
from arcforge_core.ops import reference
from arcforge_core.testing.device_checks import fault_in
from arcforge_core.testing.fake_chip.backend import FakeChip
from arcforge_core.testing.fake_chip.device import install
from arcforge_core.testing.fake_chip.faults import injected
from arcforge_core.testing.fake_chip.streams import STREAMS, entered
from arcforge_core.testing.stream_checks import PROBES, Streams, check_kernel_streams, check_streams

install("npu")
clean = {claim: [r.reason for r in check_streams(FakeChip(streams=claim)) if r.reason] for claim in (True, False)}
on, found = Streams("npu"), {}
for probe, fault in json.loads(sys.argv[1]):
    with injected(fault), entered(STREAMS[0]):  # the next one begins in the default stream
        found[f"{probe}: {fault}"] = fault_in(lambda _, probe=probe: PROBES[probe](on), "npu")
    for stream in STREAMS:
        stream.waiting.clear()


def default_stream(x, weight, eps):
    with entered(STREAMS[0]):
        return reference.rms_norm(x, weight, eps)


backend = FakeChip(streams=True)
names = {"rope": reference.rope, "rms_norm": default_stream, "attention_varlen": reference.attention_varlen}
backend.kernels = lambda: [Kernel(op, "acme", fn, lambda call: YES) for op, fn in names.items()]
kernels = {r.op: r.reason for r in check_kernel_streams(on, backend, 0)}
print(json.dumps({"kernels": kernels, "claimed": clean[True], "not claimed": clean[False], **found}))

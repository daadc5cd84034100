"""Faults of streams and events, on a chip that runs work as late as it may."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "streams.py"
FAULTS = [
    ("entering", "a stream is not entered", "is not the one that was entered"),
    ("entering", "a stream is not left", "is not the one that was entered|is still the current one"),
    ("pending events", "every event is complete", "complete before the work before it"),
    ("pending events", "the host waits for no event", "the work before it had not run"),
    ("order", "a stream runs its last work first", "gave .* instead of 7"),
    ("order", "the host waits for no stream", "gave .* instead of 7"),
    ("waiting for events", "streams wait for no event", "did not wait for an event"),
    ("waiting for streams", "streams wait for no stream", "the default stream did not wait"),
    ("events recorded again", "an event keeps its first place", "at its first place"),
    ("waiting for the device", "the host waits for no stream", "a stream still worked"),
    ("times", "events are at the same time", "are 0 ms apart"),
]


@pytest.mark.slow(reason="imports torch in a process of its own, which can have one such device")
def test_faults_of_streams_are_found_and_a_chip_without_faults_has_none():
    asked = [(probe, fault) for probe, fault, _ in FAULTS]
    command = [sys.executable, str(SCRIPT), json.dumps(asked)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["claimed"] == []
    assert said["not claimed"] == ["capabilities say no streams, but the device has them"]
    assert re.search("output is other in a side stream, whose inputs came late", said["kernels"].pop("rms_norm"))
    assert said["kernels"] == {"rope": "", "attention_varlen": ""}
    for (probe, fault), (_, _, pattern) in zip(asked, FAULTS, strict=True):
        assert re.search(pattern, said[f"{probe}: {fault}"]), (fault, said)

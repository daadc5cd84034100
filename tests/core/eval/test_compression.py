import random
import shutil
import subprocess

import pytest

from arcforge_core.errors import DataError
from arcforge_core.eval.compression import compression_baselines


def test_repetition_is_cheap_and_noise_costs_eight_bits():
    cheap = compression_baselines(b"the same line\n" * 5000)
    noise = compression_baselines(random.Random(0).randbytes(50_000))
    assert cheap.keys() == noise.keys() == {"gzip", "xz"}
    assert max(cheap.values()) < 0.1
    assert all(8.0 <= bits < 8.1 for bits in noise.values())


@pytest.mark.parametrize(("name", "command"), [("gzip", ["gzip", "-9", "-n"]), ("xz", ["xz", "-9e"])])
def test_agrees_with_the_command_line_tool(name, command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    data = "".join(f"def function_{i}(x): return x + {i * i}\n" for i in range(2000)).encode()
    size = len(subprocess.run(command, input=data, capture_output=True, check=True).stdout)
    assert compression_baselines(data)[name] == pytest.approx(8 * size / len(data), rel=0.01)


def test_refuses_no_bytes():
    with pytest.raises(DataError, match="empty"):
        compression_baselines(b"")

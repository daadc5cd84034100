"""The compiled kernels, or a skip that says why there are none."""

import pytest

from arcforge_hw.cpu.native import library


@pytest.fixture(autouse=True, scope="session")
def compiled():
    verdict = library().verdict()
    if not verdict.ok:
        pytest.skip(verdict.reason)

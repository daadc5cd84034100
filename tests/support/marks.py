"""Marks of single cases of a parametrised test."""

from typing import Any

import pytest


def nightly_case(*case: Any) -> Any:
    """Returns a case that only `make nightly` runs: one more of a test whose other cases run by default."""
    return pytest.param(*case, marks=pytest.mark.nightly(reason="one more case of a test that takes seconds"))

"""Fixtures of core's tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> None:
    """Makes every test's random tensors the same in every run."""
    torch.manual_seed(0)

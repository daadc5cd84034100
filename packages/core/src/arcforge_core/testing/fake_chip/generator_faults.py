"""Faults of the fake chip's random generator by name, for `arcforge_core.testing.fake_chip.faults.injected`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from arcforge_core.testing.fake_chip.device import DeviceModule

PAIR = 5040
"""Byte of the generator's state from which it keeps the second value of a pair of normal ones."""


def _stays(module: Any, state: Tensor, device: Any = None) -> None:
    return None


def _begins_again(module: Any, state: Tensor, device: Any = None) -> None:
    """The state holds the seed, and not how much was drawn."""
    torch.manual_seed(torch.initial_seed())


def _without_pair(module: Any, state: Tensor, device: Any = None) -> None:
    state = state.clone()
    state[PAIR:] = 0
    torch.set_rng_state(state)


GENERATOR_FAULTS: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "a restored generator stays where it is": (DeviceModule, "set_rng_state", _stays),
    "a restored generator begins again": (DeviceModule, "set_rng_state", _begins_again),
    "a restored generator forgets half a pair": (DeviceModule, "set_rng_state", _without_pair),
}
"""Name to an attribute and its replacement."""

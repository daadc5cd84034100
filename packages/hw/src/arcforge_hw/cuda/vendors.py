"""Which vendor made a device that torch calls ``cuda``: four vendors present their chips so.

Sources: FlagGems' vendor table and the vendors' PyTorch builds. None of the three other vendors' chips was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import torch

from arcforge_hw.vendors.machine import here
from arcforge_hw.vendors.signs import SIGNS

NVIDIA_NAMES = re.compile(r"NVIDIA|GeForce|Quadro|Tesla|TITAN", re.IGNORECASE)
"""Names that NVIDIA's driver gives its devices; none of another vendor's is known to match."""


MARKERS = tuple(SIGNS[vendor] for vendor in ("hygon", "metax", "kunlunxin"))
"""Vendors that present their chips as ``cuda``; their signs need no device."""


def other_vendor(version: str, attributes: Collection[str], distributions: Collection[str], hip: bool) -> str:
    """Returns who other than NVIDIA made the devices of this torch build, with the evidence; empty if nothing says so.

    Args:
        version: of torch.
        attributes: names in the module torch.
        distributions: names of installed distributions, normalised.
        hip: whether torch was built for HIP.
    """
    for marker in MARKERS:
        if marker.version and re.search(marker.version, version):
            return f"{marker.vendor}: torch is {version}"
        if marker.attribute in attributes:
            return f"{marker.vendor}: torch.{marker.attribute} exists"
        if present := [name for name in marker.distributions if name in distributions]:
            return f"{marker.vendor}: {present[0]} is installed"
    return f"amd: torch {version} is built for HIP" if hip else ""


def other_vendor_here() -> str:
    """Returns `other_vendor` of this process's torch."""
    found = here().distributions
    return other_vendor(torch.__version__, dir(torch), found, torch.version.hip is not None)

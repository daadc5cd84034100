"""Bits per byte of general-purpose compressors on the same text: the baseline of a language model."""

from __future__ import annotations

import gzip
import lzma

from arcforge_core.errors import DataError


def compression_baselines(data: bytes) -> dict[str, float]:
    """Returns bits per byte of ``gzip -9`` and ``xz -9e``, file headers included.

    Raises:
        DataError: `data` is empty.
    """
    if not data:
        raise DataError("no bytes to compress: the held-out text is empty (data.heldout)")
    sizes = {
        "gzip": len(gzip.compress(data, compresslevel=9)),
        "xz": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()}

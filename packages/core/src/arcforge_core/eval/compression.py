"""Bits per byte of general-purpose compressors on the same text: the baseline of a language model."""

from __future__ import annotations

import lzma
import zlib
from typing import Any

from arcforge_core.errors import DataError

PIECE = 1 << 16
"""Bytes of one call into a compressor; a call hears no Ctrl-C."""
GZIP = 16 + zlib.MAX_WBITS
"""`wbits` of zlib with gzip's header."""


def compression_baselines(data: bytes) -> dict[str, float]:
    """Returns bits per byte of ``gzip -9`` and ``xz -9e``, file headers included.

    Raises:
        DataError: `data` is empty.
    """
    if not data:
        raise DataError("no bytes to compress: the held-out text is empty (data.heldout)")
    compressors: dict[str, Any] = {  # zlib and lzma share no type
        "gzip": zlib.compressobj(level=9, wbits=GZIP),
        "xz": lzma.LZMACompressor(preset=9 | lzma.PRESET_EXTREME),
    }
    view, found = memoryview(data), {}
    for name, compressor in compressors.items():
        size = sum(len(compressor.compress(view[n : n + PIECE])) for n in range(0, len(data), PIECE))
        found[name] = 8 * (size + len(compressor.flush())) / len(data)
    return found

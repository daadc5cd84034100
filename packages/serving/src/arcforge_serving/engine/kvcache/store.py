"""What the pages hold: every layer's tensors, and a page of all of them as one record.

All entries of a token, e.g. latents and index keys of every layer, are allocated, evicted, copied and checked together,
so that they cannot disagree. Entries with a window are kept as long as the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from arcforge_core.contracts.attention import CacheEntry, CacheSpec, StateEntry
from arcforge_core.model.cache import layer_cache


def page_bytes(specs: Sequence[CacheSpec], dtype: torch.dtype, page_size: int) -> int:
    """Returns the bytes of a page of all layers; `dtype` is of entries that name none."""
    entries = [entry for spec in specs for entry in spec if isinstance(entry, CacheEntry)]
    return page_size * sum(prod(entry.shape) * (entry.dtype or dtype).itemsize for entry in entries)


def keeps_state(specs: Sequence[CacheSpec]) -> bool:
    """Says whether a layer keeps a state per sequence, which the tokens of a prefix do not hold."""
    return any(isinstance(entry, StateEntry) for spec in specs for entry in spec)


class PageStore:
    """The tensors; a model takes it as its cache.

    Args:
        specs: each layer's `cache_spec()`.
        pages: how many pages.
        sequences: how many sequences may keep a state.
        page_size: tokens per page.
        dtype, device: of the entries that name no dtype.
        mtp: the MTP module's `cache_spec()`, where it drafts; its entries are part of the same records.
        experts: of the experts that each token had, where they are recorded; part of the same records, too.

    Attributes:
        layers: each decoder layer's part, as `LayerCache`.
        mtp: the MTP module's part, or None.
        experts: the experts' part, or None.
        page_bytes: bytes of a page's record.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        pages: int,
        sequences: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        mtp: CacheSpec | None = None,
        experts: CacheSpec | None = None,
    ) -> None:
        rows, all_specs = pages * page_size, [*specs, *(spec for spec in (mtp, experts) if spec is not None)]
        caches = [
            layer_cache(spec, rows=rows, sequences=sequences, page_size=page_size, dtype=dtype, device=device)
            for spec in all_specs
        ]
        self.page_size = page_size
        self.layers, further = caches[: len(specs)], caches[len(specs) :]
        self.experts = None if experts is None else further.pop()
        self.mtp = None if mtp is None else further.pop()
        self._parts = [entry.view(torch.uint8).view(pages, -1) for layer in caches for entry in layer.entries.values()]
        self.page_bytes = page_bytes(all_specs, dtype, page_size)

    def read(self, page: int) -> Tensor:
        """Returns a page's record, uint8 on the host."""
        if not self._parts:
            return torch.empty(0, dtype=torch.uint8)
        return torch.cat([part[page] for part in self._parts]).cpu()

    def write(self, page: int, record: Tensor) -> None:
        """Puts a record into a page."""
        sizes = [part.shape[1] for part in self._parts]
        for part, values in zip(self._parts, record.split(sizes), strict=True):
            part[page] = values.to(part.device)

    def checksum(self, page: int) -> int:
        """Returns the CRC-32 of a page's record."""
        return checksum(self.read(page))


def checksum(record: Tensor) -> int:
    """Returns the CRC-32 of a record on the host."""
    return zlib.crc32(record.numpy().data)

"""An injected fault: an indexer whose selection differs from call to call (GLM-5, 3.2; spec 7).

**What it imitates.** Radix selections on a GPU (SGLang, TileLang, FlashInfer) compare scores digit by digit. Keys that
are still equal at the cut-off enter the result in the order in which their threads arrive, by atomic additions, until
it is full: different ones in each call. Equal scores are common: a key whose products with all index heads are negative
scores exactly 0 after the ReLU, and rounded scores coincide. The paper saw reinforcement learning collapse with such a
selection, and took `torch.topk`.

Here scores are rounded to some significant bits. Keys above the cut-off are always selected; the remaining places go to
keys equal to it, all with the same probability, redrawn in every call.

**What it does not.** On a GPU the order of the selected keys changes too, and with it the rounding of sums; here it is
ascending, as in all our kernels. A GPU's choice among equals is not uniform. And in the paper the training engine's
selection was unstable, here it is the sampling engine's alone, because a recomputation that selects other keys would
also make the gradients wrong. In both cases the two attend to different keys.

Shapes: T query tokens, S keys, N segments, I index heads, D index head size, K top-k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.contracts.hardware import Hardware, OpCall
from arcforge_core.data.split import key_hash
from arcforge_core.ops import reference
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.quant import wide_rows


class UnstableSelection(Ops):
    """The ops of a hardware backend with an unstable `indexer_topk`.

    Args:
        hardware, deterministic: see `Ops`.
        bits: significant bits of scores that are compared: 24 are float32's, which leaves exact ties; 8 are bfloat16's;
            3 are the first digit of a radix selection over float16.
    """

    def __init__(self, hardware: Hardware | None, deterministic: bool, bits: int) -> None:
        super().__init__(hardware, deterministic)
        self.bits = bits
        self._generator = torch.Generator()

    def reseed(self, seed: str) -> None:
        """Restarts the draws."""
        self._generator.manual_seed(key_hash(seed) >> 1)

    def bind(self, call: OpCall) -> Callable[..., Any]:
        """Returns the function to call for `call`."""
        return self.indexer_topk if call.op == "indexer_topk" else super().bind(call)

    @property
    def recorder(self) -> None:
        """None: a recorded step would repeat the selection that was recorded."""
        return None

    @torch.no_grad()
    def indexer_topk(
        self, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int,
        use_relu: bool = True, pages: Pages | None = None,
    ) -> Tensor:  # fmt: skip
        """See `arcforge_core.ops.reference.indexer_topk`; ties are broken at random."""
        k_SD = wide_rows(reference.laid_out(k_SD, cu_key, pages))
        score = partial(reference.index_scores, use_relu=use_relu)
        parts = _decoded if bool((cu_query.diff() == 1).all()) else _one_by_one
        return torch.cat(
            [
                reference.top_keys(shuffled_ranks(rounded(scores_TS, self.bits), self._generator), visible_TS, topk)
                for scores_TS, visible_TS in parts(score, q_TID, k_SD, w_TI, cu_query, cu_key)
            ]
        )


def _one_by_one(
    score: Callable[..., Tensor], q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the scores [T, S] of each segment, and which keys are visible."""
    for rows_q, rows_k in reference.segments(cu_query, cu_key):
        scores_TS = score(q_TID[rows_q], k_SD[rows_k], w_TI[rows_q])
        yield scores_TS, reference.causal_mask(scores_TS.shape[0], scores_TS.shape[1], scores_TS.device)


def _decoded(
    score: Callable[..., Tensor], q_NID: Tensor, k_SD: Tensor, w_NI: Tensor, cu_query: Tensor, cu_key: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the same for segments of one query each, in one batch: keys padded to the longest segment."""
    keys_S = torch.arange(int(cu_key.diff().max()))
    visible_NS = keys_S < cu_key.diff()[:, None]
    rows_NS = torch.where(visible_NS, cu_key[:-1, None] + keys_S, 0).to(k_SD.device)
    scores_NS = torch.vmap(score)(q_NID[:, None], k_SD[rows_NS], w_NI[:, None])[:, 0]
    yield scores_NS, visible_NS.to(k_SD.device)


def rounded(scores_TS: Tensor, bits: int) -> Tensor:
    """Returns scores rounded to `bits` significant bits, including the leading one."""
    fraction_TS, exponent_TS = torch.frexp(scores_TS)
    return torch.ldexp((fraction_TS * 2**bits).round(), exponent_TS - bits)


def shuffled_ranks(scores_TS: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the rank of each score in its row, 0 the lowest, in the dtype of scores; ties in random order."""
    order_TS = torch.rand(scores_TS.shape, generator=generator).argsort(-1).to(scores_TS.device)
    order_TS = order_TS.gather(1, scores_TS.gather(1, order_TS).argsort(dim=-1, stable=True))
    ranks_S = torch.arange(scores_TS.shape[1]).to(scores_TS)
    return torch.empty_like(scores_TS).scatter_(1, order_TS, ranks_S.expand_as(order_TS))

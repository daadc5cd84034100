"""The experts that the routers chose, kept in the cache's pages next to the entries that they led to.

So they are shared, evicted, restored and sent to other engines with the entries: a token found in the prefix cache has
the experts with which its entries were computed, under whatever weights, and a draft that was not accepted is written
over. Shapes: T tokens of a step, P positions of a sequence, L layers with experts, K experts per token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from arcforge_core.contracts.attention import CacheEntry, CacheSpec
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.experts import Experts, dtype_of
from arcforge_core.errors import ConfigError
from arcforge_core.model.cache import PagedLayerCache
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.moe import Router
from arcforge_serving.engine.sequence import SequenceState

ENTRY = "experts"


class ExpertChoices:
    """Listens to the routers of a model.

    Args:
        model: only its decoder layers are heard: choices of the MTP module are no part of the policy.

    Raises:
        ConfigError: the model has no router.
    """

    def __init__(self, model: CausalLM) -> None:
        routers = [module for module in model.model.modules() if isinstance(module, Router)]
        if not routers:
            raise ConfigError("engine.record_experts", True, "this model has no experts to choose")
        dtype = getattr(torch, dtype_of(model.config.n_routed_experts))
        self.spec: CacheSpec = (CacheEntry(ENTRY, (len(routers), model.config.num_experts_per_tok), dtype),)
        self._heard: list[list[Tensor]] = [[] for _ in routers]
        for layer, router in enumerate(routers):
            router.register_forward_hook(self._listener(layer))

    def _listener(self, layer: int) -> Any:
        def listen(router: nn.Module, inputs: Any, routed: tuple[Tensor, Tensor, Tensor]) -> None:
            self._heard[layer].append(routed[0])

        return listen

    def begin(self) -> None:
        """Forgets what was chosen before a step: one that failed leaves a part."""
        for parts in self._heard:
            parts.clear()

    def write(self, cache: PagedLayerCache, batch: SequenceBatch) -> None:
        """Stores what was chosen for the tokens of a step."""
        chosen_TLK = torch.stack([torch.cat(parts) for parts in self._heard], dim=1)
        cache.write(batch, **{ENTRY: chosen_TLK})


def experts_of(sequence: SequenceState, cache: PagedLayerCache) -> Experts | None:
    """Returns the experts of a running sequence from where its request asks for them to the last token but one.

    The steps that computed these positions have ended, and later ones write others.
    """
    first = sequence.params.experts_from
    if first is None or sequence.slot is None:
        return None
    place_P = torch.arange(first, len(sequence.tokens) - 1)
    page_P = torch.tensor(sequence.pages)[place_P // cache.page_size]
    entries = cache.entries[ENTRY]
    row_P = (page_P * cache.page_size + place_P % cache.page_size).to(entries.device)
    found: Experts = entries[row_P].cpu().numpy()
    return found

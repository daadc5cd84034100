"""The experts that a model chooses for a whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.experts import Experts
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.moe import Router


@torch.no_grad()
def routed(model: CausalLM, ids: Sequence[int]) -> Experts:
    """Returns the experts of a sequence that a model reads in one pass, [P, L, K]."""
    found: list[torch.Tensor] = []
    routers = [module for module in model.model.modules() if isinstance(module, Router)]
    handles = [r.register_forward_hook(lambda _, __, given: found.append(given[0])) for r in routers]
    model.hidden(torch.tensor(np.asarray(ids)), SequenceBatch.build([len(ids)]))
    for handle in handles:
        handle.remove()
    chosen: Experts = torch.stack(found, dim=1).numpy()
    return chosen

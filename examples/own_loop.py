"""Trains with a loop of one's own: the model is a torch module, and optimizers know the roles of its parameters.

python examples/own_loop.py [STEPS]
"""

from __future__ import annotations

import sys

import torch
from torch.nn import functional as F

from arcforge_core.config.compose import compose
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import default_ops
from arcforge_optim import build_optimizer

B, S, V = 8, 32, 512


def main(steps: int = 30) -> tuple[float, float]:
    """Learns to repeat a token; returns the first and the last loss."""
    torch.manual_seed(0)
    config = compose(["model=tiny", "attention=mla"])
    model = build_model(config.model, config.attention, default_ops()).train()
    optimizer = build_optimizer("muon_split", model, lr=5e-3)
    losses = []
    for _ in range(steps):
        ids_BS = torch.randint(V, (B, 1)).expand(B, S)  # one token, again and again
        logits_BSV = model(ids_BS[:, :-1]).logits
        loss = F.cross_entropy(logits_BSV.flatten(0, 1), ids_BS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    return losses[0], losses[-1]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

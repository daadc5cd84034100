"""The value model of PPO. S: sampled tokens; D: hidden."""

from __future__ import annotations

from torch import Tensor, nn


class Critic(nn.Module):
    """Values from the policy's last hidden states, initially 0. Its gradient does not reach the policy."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden_SD: Tensor) -> Tensor:
        """Returns values, fp32 [S]."""
        value_S: Tensor = self.head(hidden_SD.detach().float()).squeeze(-1)
        return value_S

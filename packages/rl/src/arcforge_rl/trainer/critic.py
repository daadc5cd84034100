"""The value models of PPO. S: sampled tokens; T: tokens; D: hidden."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.checkpoint.scalar import load_scalar
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_core.train.step import clip_gradients
from arcforge_rl.configs.learning import CriticConfig
from arcforge_rl.trainer.streams import check_tokenizer
from arcforge_rl.trainer.tokens import PolicyMicro


class Critic(nn.Module, ABC):
    """Values of the states in which tokens were sampled, initially 0, with an optimizer of its own: AdamW without
    decay, at a constant rate.

    Args:
        width: of the hidden states that the values are read from, D.
        device: of the layer that reads them.
    """

    optimizer: torch.optim.Optimizer
    shares_prefixes = True
    """Whether it reads micro-batches whose branches share tokens."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.head = nn.Linear(width, 1, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @abstractmethod
    def forward(self, micro: PolicyMicro, policy_hidden: Callable[[], Tensor]) -> Tensor:
        """Returns the values of a micro-batch's sampled tokens, fp32 [S].

        Args:
            micro: the tokens.
            policy_hidden: returns the policy's hidden states that predict them, [S, D]; not every critic asks.
        """

    def clip(self, limit: float) -> float:
        """Scales the gradient to a norm of at most `limit`; returns the norm before.

        Raises:
            NonFiniteError: it is not finite.
        """
        return clip_gradients(((f"critic.{name}", parameter) for name, parameter in self.named_parameters()), limit)

    def step(self) -> None:
        """Takes an optimizer step on the accumulated gradient, and clears it."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """Returns weights and optimizer state."""
        return {"weights": self.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state`."""
        self.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])


class SharedCritic(Critic):
    """A linear layer on the policy's last hidden states. Its gradient does not reach the policy."""

    def __init__(self, policy: CausalLM, rate: float) -> None:
        super().__init__(policy.config.hidden_size, policy.device)
        self.optimizer = torch.optim.AdamW(self.parameters(), rate, weight_decay=0.0)

    def forward(self, micro: PolicyMicro, policy_hidden: Callable[[], Tensor]) -> Tensor:
        value_S: Tensor = self.head(policy_hidden().detach().float()).squeeze(-1)
        return value_S

    def clip(self, limit: float) -> float:
        """Only checks that it is finite: the errors that it sums are clipped (`algorithm.value_clip`)."""
        return super().clip(0.0)


class SeparateCritic(Critic):
    """A transformer of its own, which reads the tokens itself.

    Args:
        scalar: the transformer, and the layer that its values start with. Its output head, MTP module and indexer are
            not trained.
        rate: of learning.
    """

    def __init__(self, scalar: ScalarModel, rate: float) -> None:
        model = scalar.model
        super().__init__(model.config.hidden_size, model.device)
        self.model, self.shares_prefixes = model, model.shares_prefixes
        self.head.load_state_dict(scalar.head.state_dict())
        tied = model.model.embed_tokens.weight
        for name, parameter in model.named_parameters():
            if parameter is not tied and (name.startswith(("lm_head.", "mtp.")) or ".indexer." in name):
                parameter.requires_grad_(False)
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, rate, weight_decay=0.0)

    def forward(self, micro: PolicyMicro, policy_hidden: Callable[[], Tensor]) -> Tensor:
        hidden_SD = self.model.hidden(micro.tokens_T, micro.batch).hidden_TD[micro.row_S]
        value_S: Tensor = self.head(hidden_SD.float()).squeeze(-1)
        return value_S


def build_critic(
    config: CriticConfig,
    policy: CausalLM,
    init: str,
    tokenizer: Tokenizer,
) -> Critic:
    """Builds the critic of a policy.

    Args:
        config: the critic's.
        policy: the policy.
        init: its checkpoint, from which a separate critic starts unless `critic.init` names another.
        tokenizer: of the policy.

    Raises:
        ConfigError: a separate critic has another tokenizer, fewer ids or fewer positions than the policy.
        CheckpointError: its checkpoint cannot be read.
    """
    if config.model == "shared":
        return SharedCritic(policy, config.rate)
    folder = find_checkpoint(config.init or init, "critic.init")
    check_tokenizer("critic.init", folder, tokenizer)
    scalar = load_scalar(folder, policy.ops).to(policy.device).train()
    model = scalar.model
    for name in ("vocab_size", "max_position_embeddings"):
        ours, policys = getattr(model.config, name), getattr(policy.config, name)
        if ours < policys:
            accepted = f"its {name} is {ours}; it reads what the policy writes and needs at least {policys}"
            raise ConfigError("critic.init", str(folder), accepted)
    model.set_compute_dtype(policy.compute_dtype)
    model.activation_checkpointing = policy.activation_checkpointing
    return SeparateCritic(scalar, config.rate)

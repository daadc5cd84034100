"""A number for every position of a text: a transformer with a linear layer in place of its output head.

Critics and reward models are such models. T: ragged tokens; D: hidden.
"""

from __future__ import annotations

from torch import Tensor, nn

from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.model.causal_lm import CausalLM


class ScalarModel(nn.Module):
    """Gives 0 everywhere until its head is trained or loaded.

    Args:
        model: the transformer. Its output head and MTP module are not used, and are frozen.
    """

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.model = model
        self.head = nn.Linear(model.config.hidden_size, 1, device=model.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        tied = model.model.embed_tokens.weight
        unused = [*model.lm_head.parameters(), *(model.mtp.parameters() if model.mtp is not None else ())]
        for parameter in unused:
            if parameter is not tied:
                parameter.requires_grad_(False)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Returns the role of the head, which is no matrix to be orthogonalised."""
        return {"head.weight": ParameterRole("head")}

    def forward(self, tokens_T: Tensor, batch: SequenceBatch, rows_S: Tensor | None = None) -> Tensor:
        """Returns the number after each token, fp32 [T], or after the tokens of some rows, [S]."""
        hidden_TD = self.model.hidden(tokens_T, batch).hidden_TD
        value_S: Tensor = self.head((hidden_TD if rows_S is None else hidden_TD[rows_S]).float()).squeeze(-1)
        return value_S

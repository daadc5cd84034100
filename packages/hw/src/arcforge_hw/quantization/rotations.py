"""Orthogonal matrices that spread outliers over all channels (QuaRot), and the sizes that they are made for.

Notation: activations are rows, ``x -> x R``; a weight [out, in] that reads rotated activations becomes ``W R``, one
that writes them ``R^T W``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import ConfigError
from arcforge_core.ops.reference import hadamard_matrix

BLOCK, SHIFT = 32, 16
"""Blocks of the query latent's rotation, and the offset of the second pass to the first."""
LATENT = ("mla", "dsa")
GROUPED = ("gqa", "swa", "swa_pattern")


def form_of(attention: AttentionConfig) -> str:
    """Returns ``mla`` or ``gqa``: which projections the attention has.

    Raises:
        ConfigError: it has others.
    """
    name = str(getattr(attention, "form", "mla")) if attention.name == "reference" else attention.name
    if name in LATENT:
        return "mla"
    if name in GROUPED:
        return "gqa"
    accepted = f"cannot be quantised; accepted are {', '.join((*LATENT, *GROUPED))}"
    raise ConfigError("attention", attention.name, accepted)


def random_hadamard(size: int, seed: int) -> Tensor:
    """Returns an orthogonal float64 matrix [size, size]: a Hadamard matrix whose rows have random signs.

    Sizes that have none (576 of SmolLM2) get the Q of a Gaussian matrix's QR decomposition.
    """
    generator = torch.Generator().manual_seed(seed)
    try:
        matrix = hadamard_matrix(size, torch.empty(0, dtype=torch.float64))
    except ValueError:
        gaussian = torch.randn(size, size, generator=generator, dtype=torch.float64)
        q: Tensor = torch.linalg.qr(gaussian).Q
        return q
    signs = 2.0 * torch.randint(0, 2, (size,), generator=generator).double() - 1.0
    turned: Tensor = signs[:, None] * matrix
    return turned


def shifted_blocks(size: int, seed: int) -> Tensor:
    """Returns blocks of `BLOCK`, a cyclic shift by `SHIFT`, and the blocks again, so that blocks mix with neighbours.

    A size that is no multiple of `BLOCK` gets one whole `random_hadamard`.
    """
    if size % BLOCK:
        return random_hadamard(size, seed)
    blocks = torch.block_diag(*[random_hadamard(BLOCK, seed)] * (size // BLOCK))
    turned: Tensor = blocks.roll(SHIFT, dims=1) @ blocks
    return turned


@dataclass(frozen=True)
class Rotations:
    """The rotations of a model; float64, made on first use.

    Attributes:
        config: the model's sizes.
        form: see `form_of`.
        seed: decides every sign.
    """

    config: ModelConfig
    form: str
    seed: int = 1234

    @cached_property
    def hidden(self) -> Tensor:
        """Of the residual stream [D, D]."""
        return random_hadamard(self.config.hidden_size, self.seed)

    @cached_property
    def query(self) -> Tensor:
        """Of MLA's query latent."""
        return shifted_blocks(self.config.q_lora_rank, self.seed)

    @cached_property
    def latent(self) -> Tensor:
        """Of MLA's key/value latent."""
        return random_hadamard(self.config.kv_lora_rank, self.seed)

    @cached_property
    def value(self) -> Tensor:
        """Of a head's values, the same in every head."""
        size = self.config.v_head_dim if self.form == "mla" else self.config.head_dim
        return random_hadamard(size, self.seed)

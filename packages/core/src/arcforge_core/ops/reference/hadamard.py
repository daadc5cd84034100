"""Hadamard transform: entries of 1 and -1, orthogonal rows."""

from __future__ import annotations

import torch
from torch import Tensor


def hadamard(x: Tensor) -> Tensor:
    """Multiplies the last axis by `hadamard_matrix`: spreads outliers, keeps lengths and dot products (QuaRot)."""
    rotated: Tensor = x @ hadamard_matrix(x.shape[-1], x)
    return rotated


def hadamard_matrix(size: int, like: Tensor) -> Tensor:
    """Returns an orthonormal Hadamard matrix [size, size], in the dtype and on the device of `like`.

    Sylvester doubling of 1, or of a Paley matrix with 12 or 20 rows, which covers hidden sizes such as 6144 = 12 * 512.

    Raises:
        ValueError: `size` is not 1, 12 or 20 times a power of two.
    """
    core = next((m for m in (1, 12, 20) if size % m == 0 and (size // m).bit_count() == 1), None)
    if core is None:
        raise ValueError(f"Hadamard size={size}: must be 1, 12 or 20 times a power of two")
    rows = torch.ones(1, 1, dtype=torch.float64) if core == 1 else _paley(core - 1)
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    while len(rows) < size:
        rows = torch.kron(pair, rows)
    matrix: Tensor = (rows * size**-0.5).to(like)
    return matrix


def _paley(prime: int) -> Tensor:
    """Returns the Hadamard matrix of prime + 1 rows for a prime that is 3 modulo 4."""
    squares = {n * n % prime for n in range(1, prime)}
    character = torch.tensor([0.0] + [1.0 if n in squares else -1.0 for n in range(1, prime)], dtype=torch.float64)
    index = torch.arange(prime)
    skew = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    skew[0, 1:], skew[1:, 0] = 1.0, -1.0
    skew[1:, 1:] = character[(index[:, None] - index) % prime]
    return skew + torch.eye(prime + 1, dtype=torch.float64)

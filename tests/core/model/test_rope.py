import math

import torch

from arcforge_core.model.rope import rope_tables
from arcforge_core.ops import reference

LAST = 202_751


def test_tables_are_right_at_the_last_position():
    dim, theta = 64, 1_000_000.0
    cos, sin = rope_tables(torch.tensor([0, 1, LAST]), dim, theta)
    assert cos.shape == sin.shape == (3, dim // 2) and cos.dtype == sin.dtype == torch.float32
    for row, position in enumerate([0, 1, LAST]):
        for pair in range(dim // 2):
            angle = position * theta ** (-2 * pair / dim)
            assert abs(float(cos[row, pair]) - math.cos(angle)) < 1e-7
            assert abs(float(sin[row, pair]) - math.sin(angle)) < 1e-7


def test_neighbouring_values_are_rotated_together_and_stay_in_place():
    positions, dim = torch.tensor([0, 3, LAST]), 8
    cos, sin = rope_tables(positions, dim, 100.0)
    x_THR = torch.randn(3, 2, dim)
    turned = torch.view_as_complex(x_THR.double().unflatten(-1, (-1, 2)))
    angles = positions.double()[:, None] * 100.0 ** (-torch.arange(0, dim, 2).double() / dim)
    expected = torch.view_as_real(turned * torch.exp(1j * angles)[:, None]).flatten(-2)
    torch.testing.assert_close(reference.rope(x_THR, cos, sin).double(), expected, rtol=0, atol=1e-6)


def test_scores_depend_on_the_distance_alone():
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(query_position: int, key_position: int) -> float:
        turned = [
            reference.rope(x, *rope_tables(torch.tensor([p]), 16, 1e6))
            for x, p in ((q, query_position), (k, key_position))
        ]
        return float((turned[0] * turned[1]).sum())

    assert math.isclose(score(7, 2), score(LAST, LAST - 5), abs_tol=1e-4)
    assert not math.isclose(score(7, 2), score(7, 4), abs_tol=1e-2)

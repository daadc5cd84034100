"""Absorbed decode on tiled attention."""

import torch

from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_hw.cpu.mla_decode import mla_decode


def test_gradcheck_and_reference_with_few_tokens_behind_long_pasts():
    queries, keys = [1, 4, 2], [9, 4, 17]
    generator = torch.Generator().manual_seed(0)
    q_THC = torch.randn(7, 3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    kv_SC = torch.randn(30, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    rest = cumulative(queries), cumulative(keys), 5, 0.3
    torch.testing.assert_close(mla_decode(q_THC, kv_SC, *rest), reference.mla_decode(q_THC, kv_SC, *rest))
    assert torch.autograd.gradcheck(lambda q, kv: mla_decode(q, kv, *rest), (q_THC, kv_SC))

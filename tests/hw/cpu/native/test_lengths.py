"""What C++ would read beyond is refused: segments that are none, and tensors of other sizes."""

import pytest
import torch

from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.cpu.native.attention_varlen import attention_varlen
from arcforge_hw.cpu.native.indexer_kl import indexer_kl
from arcforge_hw.cpu.native.indexer_topk import indexer_topk
from arcforge_hw.cpu.native.mla_decode import mla_decode

KERNELS = {fn.__name__: fn for fn in (attention_varlen, indexer_topk, mla_decode)}
WRONG = {
    "fewer keys than tokens": ([0, 4, 7], [0, 9, 11]),
    "tokens go back": ([0, 9, 7], [0, 9, 42]),
    "keys go back": ([0, 1, 7], [0, 42, 40]),
    "tokens left out": ([0, 1, 5], [0, 9, 42]),
    "not from the first token": ([2, 5, 7], [0, 9, 42]),
    "beyond the keys": ([0, 1, 7], [0, 9, 90]),
}


def ragged(op):
    """Segments of 1, 4 and 2 tokens behind a past."""
    return next(c for c in op_cases(op) if c.name.startswith("behind a past")).inputs(torch.float32, "cpu")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("op", KERNELS)
def test_segments_that_are_none_are_refused(op, wrong):
    query, key = (torch.tensor(ends, dtype=torch.int32) for ends in WRONG[wrong])
    given = ragged(op)
    with torch.no_grad(), pytest.raises(ValueError, match="no segment has fewer keys"):
        KERNELS[op](*{**given, "cu_query": query, "cu_key": key}.values())


@pytest.mark.parametrize("name", ["kv_SC", "q_TID", "k_SD", "w_TI"])
def test_the_indexers_loss_refuses_other_sizes(name):
    given = ragged("indexer_kl")
    for changed in (given[name][:-1], given[name][..., :-1]):
        with pytest.raises((ValueError, IndexError), match=r"must be|is selected"):
            indexer_kl(*{**given, name: changed}.values())

"""What C++ would read beyond is refused: segments that are none, and tensors of other sizes."""

from dataclasses import replace

import pytest
import torch

from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.cpu.native.attention_varlen import attention_varlen
from arcforge_hw.cpu.native.indexer_kl import indexer_kl
from arcforge_hw.cpu.native.indexer_topk import indexer_topk
from arcforge_hw.cpu.native.mla_decode import mla_decode
from arcforge_hw.cpu.native.sparse_mla import sparse_mla

SEGMENTED = ("attention_varlen", "indexer_topk", "mla_decode")
KERNELS = {fn.__name__: fn for fn in (attention_varlen, indexer_topk, mla_decode, sparse_mla)}
WRONG = {
    "fewer keys than tokens": ([0, 4, 7], [0, 9, 11]),
    "tokens go back": ([0, 9, 7], [0, 9, 42]),
    "keys go back": ([0, 1, 7], [0, 42, 40]),
    "tokens left out": ([0, 1, 5], [0, 9, 42]),
    "not from the first token": ([2, 5, 7], [0, 9, 42]),
    "beyond the keys": ([0, 1, 7], [0, 9, 90]),
}


def ragged(op):
    """Segments of 1, 4 and 2 tokens with a past."""
    return next(c for c in op_cases(op) if c.name.startswith("with a past")).inputs(torch.float32, "cpu")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("op", SEGMENTED)
def test_segments_that_are_none_are_refused(op, wrong):
    query, key = (torch.tensor(ends, dtype=torch.int32) for ends in WRONG[wrong])
    given = ragged(op)
    with torch.no_grad(), pytest.raises(ValueError, match="no segment has fewer keys"):
        KERNELS[op](*{**given, "cu_query": query, "cu_key": key}.values())


@pytest.mark.parametrize("op", ["indexer_topk", "mla_decode", "sparse_mla"])
@pytest.mark.parametrize("wrong", ["rows", "pages", "segments"])
def test_pages_that_do_not_hold_the_keys_are_refused(op, wrong):
    given = next(c for c in op_cases(op) if c.name == "with a past, in pages").inputs(torch.float32, "cpu")
    pages = given["pages"]
    if wrong == "rows":
        given["pages"] = replace(pages, rows=pages.rows + 4)
    else:
        table_NP = pages.table_NP[:, :-1] if wrong == "pages" else pages.table_NP[:-1]
        given["pages"] = replace(pages, table_NP=table_NP.contiguous())
    with torch.no_grad(), pytest.raises(ValueError, match="keys of the longest of 3 segments"):
        KERNELS[op](*given.values())


def test_a_selected_key_behind_the_last_page_is_refused():
    given = next(c for c in op_cases("sparse_mla") if c.name.endswith("in pages")).inputs(torch.float32, "cpu")
    given["indices_TK"][0, 0] = given["pages"].table_NP.shape[1] * 4
    with torch.no_grad(), pytest.raises(IndexError, match="selected key 4: must be below 4"):
        sparse_mla(*given.values())


@pytest.mark.parametrize("name", ["kv_SC", "q_TID", "k_SD", "w_TI"])
def test_the_indexers_loss_refuses_other_sizes(name):
    given = ragged("indexer_kl")
    for changed in (given[name][:-1], given[name][..., :-1]):
        with pytest.raises((ValueError, IndexError), match=r"must be|is selected"):
            indexer_kl(*{**given, name: changed}.values())

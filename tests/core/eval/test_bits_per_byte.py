import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.errors import DataError
from arcforge_core.eval import bits_per_byte as module
from arcforge_core.eval.bits_per_byte import bits_per_byte
from arcforge_core.model.adapt.quantised import quantise_model
from arcforge_core.model.norm import Linear
from arcforge_core.ops.reference import linear_cross_entropy
from arcforge_core.testing.small_models import small_model

VOCAB, HIDDEN = 11, 6


class Bigram(nn.Module):
    """What `bits_per_byte` uses of a `CausalLM`: the next token depends on the last one only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.lm_head = Linear(HIDDEN, VOCAB)
        self.linear_cross_entropy = linear_cross_entropy
        self.device = torch.device("cpu")
        self.modes: list[bool] = []

    def hidden(self, tokens_T, batch):
        assert batch.num_tokens == len(tokens_T)
        self.modes.append(self.training)
        return SimpleNamespace(hidden_TD=self.embed(tokens_T))


def batch_of(documents: list[list[int]], bytes_per_token: int = 3) -> TrainBatch:
    """Packs documents; the last token of each has no target."""
    tokens = [t for d in documents for t in d]
    targets = [t for d in documents for t in [*d[1:], 0]]
    weights = [w for d in documents for w in [1.0] * (len(d) - 1) + [0.0]]
    return TrainBatch(
        torch.tensor(tokens),
        torch.tensor(targets),
        torch.tensor(weights),
        SequenceBatch.build([len(d) for d in documents]),
        cursor=0,
        num_bytes=bytes_per_token * int(sum(weights)),
    )


documents = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=9), min_size=1, max_size=6)


def test_matches_a_direct_computation():
    model, batch = Bigram(), batch_of([[1, 2, 3, 4], [5, 6]])
    logprobs = F.log_softmax(model.lm_head(model.embed(torch.tensor([1, 2, 3, 5]))).double(), -1)
    nll = -float(logprobs[range(4), [2, 3, 4, 6]].detach().sum())
    result = bits_per_byte(model, [batch])
    assert result.bits_per_byte == pytest.approx(nll / math.log(2) / 12, rel=1e-6)
    assert result.loss == pytest.approx(nll / 4, rel=1e-6)
    assert (result.tokens, result.num_bytes) == (4, 12)


@given(documents, st.integers(1, 5))
def test_does_not_depend_on_packing_or_chunks(docs, chunk):
    model = Bigram()
    whole = bits_per_byte(model, [batch_of(docs)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_TOKENS", chunk)
        split = bits_per_byte(model, [batch_of([d]) for d in docs])
    assert split.bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-5)
    assert (split.tokens, split.num_bytes) == (whole.tokens, whole.num_bytes)


def test_never_holds_logits_of_all_tokens():
    model, rows = Bigram(), []

    def watched(x_TD, *args):
        rows.append(x_TD.shape[0])
        return linear_cross_entropy(x_TD, *args)

    model.linear_cross_entropy = watched
    bits_per_byte(model, [batch_of([[1] * 3000])])
    assert max(rows) == module.CHUNK_TOKENS and sum(rows) == 3000


@pytest.mark.parametrize("training", [True, False])
def test_evaluates_in_eval_mode_and_restores_the_mode(training):
    model = Bigram().train(training)
    bits_per_byte(model, [batch_of([[1, 2]])])
    assert model.modes == [False] and model.training is training


def test_restores_the_mode_after_an_error():
    model = Bigram().train()
    with pytest.raises(IndexError):
        bits_per_byte(model, [batch_of([[1, VOCAB]])])
    assert model.training


@pytest.mark.parametrize("batches", [[], [batch_of([[1]])]])
def test_refuses_nothing(batches):
    with pytest.raises(DataError, match=r"data\.heldout"):
        bits_per_byte(Bigram(), batches)


def test_a_head_of_integers_is_measured_by_its_values():
    model, batch = small_model(q_lora_rank=32, moe_intermediate_size=32, intermediate_size=64), batch_of([[1, 2, 3, 4]])
    quantise_model(model, "int4")
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3]])).logits[0]
    nll = -float(F.log_softmax(logits.double(), -1)[range(3), [2, 3, 4]].sum())
    assert bits_per_byte(model, [batch]).bits_per_byte == pytest.approx(nll / math.log(2) / 9, rel=1e-5)

"""Supervised fine-tuning: masked tokens give no gradient, and packing and accumulation change nothing."""

import dataclasses
import json
import random

import pytest
import torch

from arcforge_core.config.schema import AdapterConfig, MtpConfig, TokenizerConfig
from arcforge_core.configs import ConversationsDataConfig
from arcforge_core.data.tokens.pipeline import Corpus, build_data
from arcforge_core.model.adapt.lora import Adapter, attach, named_adapters
from arcforge_core.testing.small_models import small_model, small_tokenizer
from arcforge_core.train.losses import cross_entropy
from arcforge_core.train.step import StepBatch, accumulate_gradients


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Conversations of many lengths, some with masked turns, in all thinking modes."""
    folder = tmp_path_factory.mktemp("conversations")
    small_tokenizer().save(folder / "tokenizer")
    draw = random.Random(0)
    records = []
    for n in range(12):
        mode = ("off", "interleaved", "preserved")[n % 3]
        messages = []
        for turn in range(draw.randrange(1, 4)):
            answer = {"role": "assistant", "content": "so " * draw.randrange(1, 9), "train": turn != 1}
            if mode != "off":
                answer["reasoning_content"] = f"thought {n} {turn}"
            messages += [{"role": "user", "content": f"question {n}.{turn}"}, answer]
        records.append({"messages": messages, "thinking": mode})
    (folder / "a.json").write_text(json.dumps(records))
    settings = ConversationsDataConfig(
        chat=[str(folder / "a.json")],
        tokenizer=TokenizerConfig(path=str(folder / "tokenizer")),
        cache_dir=str(folder),
        heldout=0.0,
    )
    return build_data(settings, model_vocab_size=4096, progress=False)


def model(corpus: Corpus, depths: int = 0):
    size = corpus.tokenizer.vocab_size
    mtp = MtpConfig(depths=depths, fraction=1.0)
    return small_model(vocab_size=size, balance_loss_weight=0.01 if depths else 0.0, mtp=mtp).double()


def epoch(corpus: Corpus, sequence_length: int, rows: int, seed: int = 0) -> list:
    """Returns the micro-batches of one epoch, which hold every example once."""
    counts = corpus.manifest["splits"]["train"]["chat"]
    wanted, batches = counts["tokens"] - counts["documents"], []
    for batch in corpus.train_batches(sequence_length, sequence_length * rows, seed):
        batches.append(batch)
        seen = sum(b.batch.num_tokens for b in batches)
        if seen >= wanted:
            assert seen == wanted, "an epoch ends with a micro-batch in this test"
            return batches
    raise AssertionError


def gradients(model, micros):
    model.zero_grad()
    result = accumulate_gradients(model, StepBatch(micros), lambda loss: loss.backward(), lambda values: (values, 1.0))
    return result.losses, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_masked_tokens_have_exactly_zero_gradient(corpus: Corpus) -> None:
    net, batch = model(corpus), next(corpus.train_batches(160, 320, seed=0))
    hidden_TD = net.hidden(batch.tokens_T, batch.batch).hidden_TD.detach().requires_grad_()
    cross_entropy(net, hidden_TD, batch.targets_T, batch.weights_T).backward()
    moved_T = hidden_TD.grad.abs().amax(1)
    masked_T = batch.weights_T == 0
    assert 0 < int(masked_T.sum()) < masked_T.numel()
    assert torch.equal(moved_T[masked_T], torch.zeros_like(moved_T[masked_T]))
    assert (moved_T[~masked_T] > 0).all()


def test_what_masked_targets_are_changes_no_bit_of_any_gradient(corpus: Corpus) -> None:
    net, batch = model(corpus), next(corpus.train_batches(160, 320, seed=0))
    others_T = torch.where(batch.weights_T == 0, (batch.targets_T + 17) % 64, batch.targets_T)
    _, before = gradients(net, [batch])
    _, after = gradients(net, [dataclasses.replace(batch, targets_T=others_T)])
    assert all(torch.equal(before[name], after[name]) for name in before)
    unmasked = torch.where(batch.weights_T == 1, (batch.targets_T + 17) % 64, batch.targets_T)
    _, moved = gradients(net, [dataclasses.replace(batch, targets_T=unmasked)])
    assert not torch.equal(before["lm_head.weight"], moved["lm_head.weight"])


def assert_packing_changes_nothing(net, corpus: Corpus) -> None:
    """One epoch as one step: long rows, short rows, other orders, one micro-batch or many."""
    longest = corpus.manifest["encoder"]["longest"] - 1
    losses, expected = gradients(net, epoch(corpus, longest, 1))
    for length, seed in ((longest + 7, 1), (3 * longest, 0)):
        other, found = gradients(net, epoch(corpus, length, 1, seed))
        for name, value in losses.items():
            torch.testing.assert_close(other[name], value, msg=name)
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-7, atol=1e-10, msg=name)


@pytest.mark.parametrize("depths", [0, 1])
def test_loss_and_gradients_do_not_depend_on_packing_or_accumulation(corpus: Corpus, depths: int) -> None:
    assert_packing_changes_nothing(model(corpus, depths), corpus)


# ---- with adapters ---------------------------------------------------------------------------------------------------


def adapted(corpus: Corpus, depths: int = 0):
    net = model(corpus, depths)
    torch.manual_seed(1)
    attach(net, Adapter(AdapterConfig(name="lora", rank=3), "base", "sha", {}))
    with torch.no_grad():
        for _, low in named_adapters(net):
            low.B.normal_(0.0, 0.1)
    return net


def test_masked_targets_change_no_bit_of_an_adapter_s_gradient(corpus: Corpus) -> None:
    net, batch = adapted(corpus), next(corpus.train_batches(160, 320, seed=0))
    others_T = torch.where(batch.weights_T == 0, (batch.targets_T + 17) % 64, batch.targets_T)
    _, before = gradients(net, [batch])
    _, after = gradients(net, [dataclasses.replace(batch, targets_T=others_T)])
    assert before and all(".lora." in name or "_lora." in name for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)
    _, nothing = gradients(net, [dataclasses.replace(batch, weights_T=torch.zeros_like(batch.weights_T))])
    assert all(not grad.any() for grad in nothing.values())
    unmasked = torch.where(batch.weights_T == 1, (batch.targets_T + 17) % 64, batch.targets_T)
    _, moved = gradients(net, [dataclasses.replace(batch, targets_T=unmasked)])
    assert not any(torch.equal(before[name], moved[name]) for name in before)


@pytest.mark.parametrize("depths", [0, 1])
def test_adapters_do_not_depend_on_packing_or_accumulation(corpus: Corpus, depths: int) -> None:
    assert_packing_changes_nothing(adapted(corpus, depths), corpus)

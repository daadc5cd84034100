import pytest
import torch

from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.config.schema import EvalConfig, MtpConfig
from arcforge_core.configs import (
    FilesDataConfig,
    MtpAcceptanceSuiteConfig,
    ReferenceAttentionConfig,
    TorchCpuConfig,
)
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval import mtp_acceptance as measured
from arcforge_core.eval.mtp_acceptance import MtpAcceptance, continuations, count_accepted, mtp_acceptance, spread
from arcforge_core.eval.run import evaluate
from arcforge_core.model.build import build_model
from arcforge_core.model.cache import PagedCache
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import RING, after_in_ring, ring_model, small_config, small_model
from support.runs import write_corpus

V = RING


def ring(token, count):
    return token if count == 0 else ring(after_in_ring(token), count - 1)


CONTEXTS = [[token] for token in range(V)] + [[3, 9, token, 1, token] for token in range(V)] + [[7] * 30]


def test_a_module_that_knows_the_ring_is_always_right():
    assert count_accepted(ring_model(of_ahead=lambda token: token), CONTEXTS, drafts=5) == [5] * len(CONTEXTS)


def test_a_module_that_is_always_one_late_never_is():
    assert count_accepted(ring_model(of_hidden=lambda token: token), CONTEXTS) == [0] * len(CONTEXTS)


def test_the_hidden_state_is_handed_from_step_to_step():
    assert count_accepted(ring_model(of_hidden=after_in_ring), CONTEXTS, drafts=3) == [3] * len(CONTEXTS)


@pytest.mark.parametrize("wrong", [0, 6])
def test_drafts_are_accepted_up_to_the_first_wrong_one(wrong):
    """The module errs after one token: how far that is ahead in the ring is how many drafts are accepted."""
    model = ring_model(of_ahead=lambda token: (token + (token == wrong)) % V)
    expected = [next((n for n in range(4) if ring(context[-1], n + 1) == wrong), 4) for context in CONTEXTS]
    assert set(expected) == {0, 1, 2, 3, 4}
    assert count_accepted(model, CONTEXTS) == expected


def test_a_right_draft_after_a_wrong_one_does_not_count():
    """After its error the module would continue as the ring does."""
    model = ring_model(of_ahead=lambda token: 2 if token == 1 else token)
    counts = count_accepted(model, CONTEXTS)
    for context, count in zip(CONTEXTS, counts, strict=True):
        assert (count == 0) == (after_in_ring(context[-1]) == 1)


def one_by_one(model, context, drafts):
    """The same with a cache of the MTP module's, one context and one token at a time."""
    ids = torch.tensor(context)
    hidden_TD = model.hidden(ids, SequenceBatch.build([len(ids)])).hidden_TD
    chosen = model(ids[None]).logits[0, -1].argmax()
    cache = PagedCache([model.mtp.self_attn.cache_spec()], [64], dtype=model.dtype)
    ahead_T, sequence, count = torch.cat((ids[1:], chosen[None])), [*context, int(chosen)], 0
    for _ in range(drafts):
        batch = cache.batch([0], [len(ahead_T)])
        hidden_TD = model.mtp.step(model.embed(ahead_T), hidden_TD, batch, model.rope(batch), cache.layers[0]).x_TD[-1:]
        ahead_T = model.logits(hidden_TD).argmax(-1)
        if model(torch.tensor([sequence])).logits[0, -1].argmax() != ahead_T[0]:
            return count
        sequence.append(int(ahead_T[0]))
        count += 1
    return count


@pytest.mark.parametrize("form", ["mla", "gqa"])
def test_equals_serving_with_one_cache_token_by_token(form, monkeypatch):
    monkeypatch.setattr(measured, "BATCH_TOKENS", 70)
    generator, seen = torch.Generator().manual_seed(0), set()
    contexts = [torch.randint(3, (n,), generator=generator).tolist() for n in [*range(1, 16), 40]]
    for seed in range(3):
        torch.manual_seed(seed)
        model = build_model(small_config(vocab_size=3), ReferenceAttentionConfig(form=form), Ops(None)).eval()
        with torch.no_grad():
            expected = [one_by_one(model, context, 4) for context in contexts]
        assert count_accepted(model.train(), contexts, 4) == expected
        assert model.training
        seen |= set(expected)
    assert len(seen) >= 3  # else this says little


def test_figures_are_lengths_and_shares_by_place():
    found = MtpAcceptance(2, (0, 1, 2, 2), (2,)).figures()
    assert found == {
        "mtp_accept_length_generated": 3.0, "mtp_accept_1_generated": 1.0, "mtp_accept_2_generated": 1.0,
        "mtp_accept_length_text": 2.25, "mtp_accept_1_text": 0.75, "mtp_accept_2_text": 0.5,
    }  # fmt: skip
    assert set(MtpAcceptance(1, (0,), ()).figures()) == {"mtp_accept_length_text", "mtp_accept_1_text"}


def test_places_are_spread():
    assert spread(64, 4) == [16, 32, 48, 64]
    assert spread(3, 16) == [1, 2, 3]
    assert spread(5, 2) == [3, 5]


def test_continuations_are_greedy_and_stop_before_an_end():
    model, end = ring_model(of_ahead=lambda token: token), ring(9, 4)
    [first, *_] = found = continuations(model, [[1, 2, 9, 8, 8]], eos_id=end)
    assert first == [1, 2, 9]
    assert [context[3:] for context in found] == [[ring(9, n) for n in range(1, count)] for count in range(1, 4)]
    assert len(continuations(model, [[1, 9, 0], [9, 4]], eos_id=V - 1 if end != V - 1 else 0)) > 20
    assert continuations(model, [[9, 4]], eos_id=after_in_ring(9)) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of an untrained model, its data config and corpus."""
    root = tmp_path_factory.mktemp("mtp")
    data = FilesDataConfig(paths=[str(write_corpus(root / "corpus"))], cache_dir=str(root / "cache"), heldout=0.2)
    corpus = build_data(data, model_vocab_size=512, progress=False)
    torch.manual_seed(0)
    model = build_model(small_config(vocab_size=512, max_position_embeddings=64), ReferenceAttentionConfig())
    save_pretrained(model, root / "model", corpus.tokenizer)
    return root / "model", data, corpus


def test_measures_a_checkpoint(saved, capsys):
    config = EvalConfig(
        MtpAcceptanceSuiteConfig(positions=40, sequence_length=32, drafts=2), str(saved[0]), saved[1], TorchCpuConfig()
    )
    result = evaluate(config)
    assert result.dir == saved[0]
    assert list(result.figures) == [
        f"mtp_accept_{what}_{kind}" for kind in ("generated", "text") for what in ("length", 1, 2)
    ]
    assert result == evaluate(config)
    assert "mtp_accept_length_text" in capsys.readouterr().out


def test_takes_as_many_positions_as_asked_for(saved, monkeypatch):
    corpus, model = saved[2], small_model(vocab_size=512, max_position_embeddings=64)
    seen = []
    monkeypatch.setattr(measured, "count_accepted", lambda model, contexts, drafts: seen.append(contexts) or [0])
    mtp_acceptance(model, corpus, 40, 32)
    text, generated = seen
    assert len(text) == len(generated) == 48  # three texts of 16
    assert max(map(len, text)) == 32 and {len(context) for context in generated} == set(range(16, 32))
    seen.clear()
    mtp_acceptance(model, corpus, 16, 64)  # drafts and continuations must still fit
    assert max(len(context) for context in seen[0]) == 64 - 16 - 4


def test_refuses_what_cannot_be_measured(saved):
    _, data, corpus = saved
    without = small_model(vocab_size=512, mtp=MtpConfig(depths=0))
    with pytest.raises(ConfigError, match=r"model\.mtp\.depths=0: this model has no MTP module"):
        mtp_acceptance(without, corpus, 16, 32)
    with pytest.raises(ConfigError, match=r"max_position_embeddings=20: too few for 4 drafts"):
        mtp_acceptance(small_model(vocab_size=512, max_position_embeddings=20), corpus, 16, 32)
    with pytest.raises(ConfigError, match=r"suite\.sequence_length=65"):
        evaluate(EvalConfig(MtpAcceptanceSuiteConfig(sequence_length=65), str(saved[0]), data, TorchCpuConfig()))
    nothing = FilesDataConfig(paths=data.paths, cache_dir=data.cache_dir, heldout=0.0)
    with pytest.raises(DataError, match=r"data\.heldout=0"):
        evaluate(EvalConfig(MtpAcceptanceSuiteConfig(sequence_length=32), str(saved[0]), nothing, TorchCpuConfig()))
    for name in ("drafts", "positions", "sequence_length"):
        with pytest.raises(ConfigError, match=rf"suite\.{name}=0"):
            MtpAcceptanceSuiteConfig(**{name: 0})

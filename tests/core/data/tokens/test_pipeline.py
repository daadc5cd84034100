import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from arcforge_core.config.schema import TokenizerConfig
from arcforge_core.configs import FilesDataConfig, MixtureDataConfig, StdlibDataConfig
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.data.sources.text import StdlibSource
from arcforge_core.data.tokens.build import build_shards
from arcforge_core.data.tokens.pipeline import Corpus, build_data
from arcforge_core.errors import ConfigError, DataError
from support.corpora import VOCAB_SIZE, tiny_corpus, write_texts

PACKINGS = ("sequential", "best_fit", "long_documents")


@pytest.fixture(scope="module", params=PACKINGS)
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), packing=request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


def take(batches: Iterator[TrainBatch], count: int) -> list[TrainBatch]:
    return list(itertools.islice(batches, count))


def same(left: TrainBatch, right: TrainBatch) -> bool:
    return (
        torch.equal(left.tokens_T, right.tokens_T)
        and torch.equal(left.targets_T, right.targets_T)
        and torch.equal(left.batch.cu_query, right.batch.cu_query)
        and left.num_bytes == right.num_bytes
    )


def segments(batch: TrainBatch) -> list[tuple[list[int], list[int]]]:
    lengths = batch.batch.query_lengths()
    pairs = zip(batch.tokens_T.split(lengths), batch.targets_T.split(lengths), strict=True)
    return [(tokens.tolist(), targets.tolist()) for tokens, targets in pairs]


def test_targets_are_the_next_tokens_of_the_same_document(corpus: Corpus) -> None:
    eos, bos = corpus.tokenizer.eos_id, corpus.tokenizer.bos_id
    for batch in take(corpus.train_batches(32, 128, seed=0), 50):
        assert batch.tokens_T.dtype == batch.targets_T.dtype == torch.int64
        assert batch.weights_T.dtype == torch.float32
        assert bool((batch.weights_T == 1).all())
        assert batch.batch.num_tokens == len(batch.tokens_T) == len(batch.targets_T)
        for tokens, targets in segments(batch):
            assert targets[:-1] == tokens[1:]
            assert eos not in tokens
            assert bos not in tokens[1:] + targets


def test_batch_sizes(corpus: Corpus) -> None:
    sizes = [len(b.tokens_T) for b in take(corpus.train_batches(32, 128, seed=0), 50)]
    if corpus._packing.name == "sequential":
        assert set(sizes) == {128}
    else:
        assert min(sizes) > 100 and max(sizes) <= 128


def test_an_epoch_of_best_fit_holds_every_text_byte_once(tmp_path: Path) -> None:
    corpus = tiny_corpus(tmp_path, packing="best_fit")
    total = sum(s["bytes"] for s in corpus.manifest["splits"]["train"].values())
    stream = corpus.train_batches(16, 16, seed=3)  # one row per micro-batch
    for _ in range(2):
        seen = 0
        while seen < total:
            seen += next(stream).num_bytes
        assert seen == total


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 40), st.integers(1, 3), st.integers(0, 3))
def test_resuming_equals_skipping_and_ranks_share_one_stream(start: int, world_size: int, seed: int) -> None:
    for corpus in CORPORA.values():
        whole = take(corpus.train_batches(32, 64, seed=seed), (start + 3) * world_size)
        for rank in range(world_size):
            own = take(corpus.train_batches(32, 64, seed, rank, world_size, start_cursor=start), 3)
            assert [b.cursor for b in own] == [start + 1, start + 2, start + 3]
            mine = whole[rank::world_size]
            assert all(same(a, b) for a, b in zip(own, mine[start:], strict=True))


CORPORA: dict[str, Corpus] = {}


@pytest.fixture(autouse=True, scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> None:
    for packing in PACKINGS:
        CORPORA[packing] = tiny_corpus(tmp_path_factory.mktemp("both"), num_files=12, packing=packing)


def test_a_seed_fixes_the_stream_and_another_changes_it(corpus: Corpus) -> None:
    first, again, other = (take(corpus.train_batches(32, 64, seed=s), 5) for s in (0, 0, 1))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not all(same(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(("sequence_length", "micro_batch_tokens"), [(16, 16), (16, 64), (4096, 8192)])
def test_heldout_bytes_are_counted_exactly(corpus: Corpus, sequence_length: int, micro_batch_tokens: int) -> None:
    batches = list(corpus.heldout_batches(sequence_length, micro_batch_tokens))
    texts = [d.text for d in corpus.heldout_documents()]
    assert sum(b.num_bytes for b in batches) == sum(len(t.encode()) for t in texts) == len(corpus.heldout_bytes())
    assert [b.cursor for b in batches] == list(range(1, len(batches) + 1))
    predicted = sum(len(b.tokens_T) for b in batches)
    assert predicted == sum(len(corpus.tokenizer.encode(t)) + 1 for t in texts)


def test_heldout_texts_are_predicted_whole(plain: Corpus) -> None:
    found = []
    for batch in plain.heldout_batches(1 << 16, 1 << 16):
        for tokens, targets in segments(batch):
            assert tokens[0] == plain.tokenizer.bos_id
            assert targets[-1] == plain.tokenizer.eos_id
            found.append(plain.tokenizer.decode(targets[:-1]))
    assert sorted(found) == sorted(d.text for d in plain.heldout_documents())


def test_a_limited_evaluation_is_the_start_of_the_whole_one(plain: Corpus) -> None:
    whole = list(plain.heldout_batches(16, 64))
    for limit, count in ((1, 1), (64, 1), (128, 2), (200, 3), (10**9, len(whole))):
        part = list(plain.heldout_batches(16, 64, max_tokens=limit))
        assert len(part) == count
        assert all(same(a, b) for a, b in zip(part, whole, strict=False))


def test_training_never_sees_heldout_texts(plain: Corpus) -> None:
    heldout = {tuple(plain.tokenizer.encode(d.text))[:20] for d in plain.heldout_documents()}
    seen = set()
    for batch in take(plain.train_batches(4096, 4096, seed=0), 8):
        seen |= {tuple(targets[:20]) for tokens, targets in segments(batch) if tokens[0] == plain.tokenizer.bos_id}
    assert len(seen) > 20
    assert not seen & heldout


def test_without_heldout_documents_evaluation_is_refused(tmp_path: Path) -> None:
    corpus = tiny_corpus(tmp_path, heldout=0.0)
    assert next(corpus.train_batches(16, 16, seed=0)).num_bytes > 0
    for ask in (corpus.heldout_bytes, corpus.heldout_documents, lambda: corpus.heldout_batches(16, 16)):
        with pytest.raises(DataError, match=r"data\.heldout=0"):
            ask()


def test_impossible_lengths_are_refused_before_the_first_batch(plain: Corpus) -> None:
    total = plain.manifest["splits"]["train"]["files"]
    positions = total["tokens"] - total["documents"]
    with pytest.raises(DataError, match=rf"sequence_length={positions + 1}: the corpus has only {positions} tokens"):
        plain.train_batches(positions + 1, positions + 1, seed=0)
    with pytest.raises(ConfigError, match=r"micro_batch_tokens=100: must be a multiple of sequence_length=64"):
        plain.train_batches(64, 100, seed=0)
    with pytest.raises(ConfigError, match=r"micro_batch_tokens=100"):
        plain.heldout_batches(64, 100)
    with pytest.raises(ConfigError, match=r"rank=2"):
        plain.train_batches(16, 16, seed=0, rank=2, world_size=2)


def test_a_micro_batch_longer_than_an_epoch_goes_on_in_the_next(tmp_path: Path) -> None:
    corpus = tiny_corpus(tmp_path, num_files=3)
    positions = corpus.manifest["splits"]["train"]["files"]["tokens"]
    micro = 16 * (positions // 16 + 5)
    assert len(next(corpus.train_batches(16, micro, seed=0)).tokens_T) == micro


@pytest.mark.parametrize("packing", PACKINGS)
def test_mixture_weights_act_on_tokens(tmp_path: Path, packing: str) -> None:
    parts = {name: write_texts(tmp_path / name, 30, seed) for seed, name in enumerate(("code", "prose"))}
    config = MixtureDataConfig(
        sources={name: FilesDataConfig(paths=[str(path)]) for name, path in parts.items()},
        weights={"prose": 4.0},
        packing=packing,
        cache_dir=str(tmp_path / "cache"),
        heldout=0.1,
    )
    corpus = build_data(config, model_vocab_size=VOCAB_SIZE, progress=False)
    assert set(corpus.manifest["splits"]["train"]) == {"code", "prose"}
    inside = {name: "".join(p.read_text() for p in path.iterdir()) for name, path in parts.items()}
    tokens = {"code": 0, "prose": 0}
    for batch in take(corpus.train_batches(256, 512, seed=0), 400):
        for _, targets in segments(batch):
            text = corpus.tokenizer.decode([t for t in targets if t != corpus.tokenizer.eos_id]).strip("\ufffd")
            homes = [name for name, whole in inside.items() if text in whole]
            if len(homes) == 1:
                tokens[homes[0]] += len(targets)
    assert tokens["prose"] / sum(tokens.values()) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_functions_have_their_share_and_none_comes_from_a_heldout_file(tmp_path: Path, share: float) -> None:
    root = tmp_path / "library"
    root.mkdir()
    for n in range(60):
        body = "".join(f"        x{n}_{line} = {n * line}\n" for line in range(6))
        (root / f"m{n}.py").write_text(f"class A{n}:\n    def inside_{n}(self):\n{body}        return self\n")
    config = StdlibDataConfig(functions=share, heldout=0.2, cache_dir=str(tmp_path / "cache"))
    source = StdlibSource(config, root)
    corpus = Corpus(build_shards(config, source, VOCAB_SIZE, progress=False), weights=source.weights)
    heldout = corpus.heldout_documents()
    assert {d.source for d in heldout} == {"stdlib"}
    tokens, starts = {"file": 0, "function": 0}, set()
    for batch in take(corpus.train_batches(4096, 4096, seed=0), 200):
        for _, targets in segments(batch):
            text = corpus.tokenizer.decode(targets)
            tokens["function" if text.startswith("def inside_") else "file"] += len(targets)
            starts.add(text.split("(")[0])
    names = {f"def inside_{n}" for n in range(60)}
    held = {f"def inside_{d.key[1:-3]}" for d in heldout if d.key.startswith("m")}
    assert held
    assert names & starts == names - held
    assert tokens["function"] / sum(tokens.values()) == pytest.approx(share, abs=0.06)


def test_a_foreign_tokenizer_without_byte_lengths_counts_every_byte(tmp_path: Path) -> None:
    words = {"<s>": 0, "</s>": 1, "[UNK]": 2, "def": 3, "self": 4, "(": 5}
    model = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.save(str(tmp_path / "words.json"))
    texts = write_texts(tmp_path / "texts", 20)
    config = FilesDataConfig(
        paths=[str(texts)],
        tokenizer=TokenizerConfig(path=str(tmp_path / "words.json")),
        cache_dir=str(tmp_path / "cache"),
        heldout=0.3,
    )
    corpus = build_data(config, model_vocab_size=6, progress=False)
    assert corpus.manifest["byte_counts"] == "spread"
    assert sum(b.num_bytes for b in corpus.heldout_batches(8, 8)) == len(corpus.heldout_bytes())
    assert all(b.num_bytes >= 0 for b in corpus.heldout_batches(8, 8))

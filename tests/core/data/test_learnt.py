"""Documents whose beginning is read and not learnt: weights, bytes, cut documents, held-out figures."""

import itertools
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from arcforge_core.config.schema import TokenizerConfig
from arcforge_core.configs import FilesDataConfig, RetrievalDataConfig
from arcforge_core.contracts.data import Document
from arcforge_core.data.sources.retrieval import RetrievalSource
from arcforge_core.data.tokens.build import build_shards
from arcforge_core.data.tokens.packing import Rule
from arcforge_core.data.tokens.pipeline import Corpus
from support.corpora import VOCAB_SIZE


class Texts:
    """Documents given in code."""

    def __init__(self, documents):
        self._documents = documents

    def documents(self):
        yield from self._documents

    def fingerprint(self):
        return str(self._documents)


def corpus_of(tmp_path, documents, packing="sequential", tokenizer=None):
    tokenizer = TokenizerConfig(path=tokenizer) if tokenizer else TokenizerConfig(vocab_size=VOCAB_SIZE)
    config = FilesDataConfig(paths=["unused"], cache_dir=str(tmp_path), heldout=0.3, tokenizer=tokenizer)
    return Corpus(build_shards(config, Texts(documents), VOCAB_SIZE, progress=False), Rule(packing))


def documents(count=30):
    return [
        Document(f"{n}", f"what is read first, {n} times. " * (1 + n % 4) + f"and learnt {n}" * 3, "made",
                 learnt_from=0 if n % 5 == 0 else len(f"what is read first, {n} times. ") * (1 + n % 4))
        for n in range(count)
    ]  # fmt: skip


def learnt_texts(corpus, sequence_length):
    """Decodes the weighted targets of an epoch's worth of held-out rows, in order."""
    ids, num_bytes = [], 0
    for batch in corpus.heldout_batches(sequence_length, sequence_length):
        ids += batch.targets_T[batch.weights_T > 0].tolist()
        num_bytes += batch.num_bytes
    return corpus.tokenizer.decode([i for i in ids if i != corpus.tokenizer.eos_id]), num_bytes


@pytest.mark.parametrize("sequence_length", [7, 32, 400])
def test_only_what_is_learnt_has_weight(tmp_path, sequence_length):
    made = documents()
    corpus = corpus_of(tmp_path, made)
    text, num_bytes = learnt_texts(corpus, sequence_length)
    heldout = {document.key for document in corpus.heldout_documents()}
    wanted = [document.learnt for document in made if document.key in heldout]
    assert 0 < len(wanted) < len(made)
    assert sorted(text) == sorted("".join(wanted))
    assert num_bytes == len("".join(wanted).encode()) == len(corpus.heldout_bytes())


@pytest.mark.parametrize("packing", ["sequential", "best_fit"])
def test_training_rows_are_weighted_too(tmp_path, packing):
    corpus = corpus_of(tmp_path, documents(), packing)
    for batch in itertools.islice(corpus.train_batches(48, 96, seed=0), 20):
        assert 0 < int(batch.weights_T.sum()) < batch.batch.num_tokens
        for weights in batch.weights_T.split(batch.batch.query_lengths()):
            assert weights.tolist() == sorted(weights.tolist()), "what is not learnt stands first"


@settings(max_examples=10, deadline=None)
@given(st.integers(3, 60))
def test_bytes_are_spread_over_what_is_learnt(tmp_path_factory, sequence_length):
    """A tokenizer whose ids have no fixed length; the sum over a document is still exact."""
    folder = tmp_path_factory.mktemp("spread")
    words = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "[gMASK]": 1, "<sop>": 2, "<|endoftext|>": 3}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<sop>", "eos_token": "<|endoftext|>"}))
    corpus = corpus_of(folder / "cache", documents(12), tokenizer=str(folder))
    assert corpus.manifest["byte_counts"] == "spread"
    assert learnt_texts(corpus, sequence_length)[1] == len(corpus.heldout_bytes())


def test_retrieval_learns_the_questions_or_everything():
    class Lines(Texts):
        def __init__(self):
            super().__init__([Document(f"{n}", f"a line of some text, number {n}\n" * 40, "lines") for n in range(9)])

    asked, everything = (
        next(iter(RetrievalSource(RetrievalDataConfig(episodes=1, learn=learn), Lines()).documents()))
        for learn in ("questions", "all")
    )
    assert asked.text == everything.text and everything.learnt_from == 0
    assert asked.learnt and "a line of some text" not in asked.learnt and "a line" in asked.text[: asked.learnt_from]
    assert (
        RetrievalSource(RetrievalDataConfig(), Lines()).fingerprint()
        != RetrievalSource(RetrievalDataConfig(learn="all"), Lines()).fingerprint()
    )


def test_a_batch_reads_weights_as_float32(tmp_path):
    batch = next(corpus_of(tmp_path, documents()).train_batches(32, 32, seed=0))
    assert batch.weights_T.numpy().dtype == np.float32

"""The conformance suite of corpora: subclass it and provide the fixtures `make_source` and `make_other`.

class TestAcme(DataSuite):
    @pytest.fixture
    def make_source(self):
        return lambda: AcmeSource(AcmeDataConfig())

    @pytest.fixture
    def make_other(self):
        return lambda: AcmeSource(AcmeDataConfig(language="la"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

import pytest

from arcforge_core.contracts.data import Document, DocumentSource
from arcforge_core.data.split import scan

Maker = Callable[[], DocumentSource]


class DataSuite:
    """Checks of every source: the same documents in the same order, unique keys, and a fingerprint."""

    limit: int = 1000
    """Maximum number of documents to read, for corpora too large for tests."""

    @pytest.fixture
    def make_source(self) -> Maker:
        """A function without arguments that opens the corpus again; a subclass overrides it."""
        raise NotImplementedError("provide the fixture `make_source` in your subclass")

    @pytest.fixture
    def make_other(self) -> Maker:
        """The same for a corpus that differs in content or in how it is read; a subclass overrides it."""
        raise NotImplementedError("provide the fixture `make_other` in your subclass")

    @pytest.fixture
    def documents(self, make_source: Maker) -> list[Document]:
        """The corpus, up to `limit` documents."""
        return list(islice(make_source().documents(), self.limit))

    def test_keys_are_unique(self, documents: list[Document]) -> None:
        """A key identifies one document, and decides its side of the split."""
        keys = Counter(document.key for document in documents)
        assert not [key for key, count in keys.items() if count > 1]
        assert all(keys)

    def test_texts_are_utf8(self, documents: list[Document]) -> None:
        """Every text can be encoded, and some text is not empty."""
        assert any(document.text.encode() for document in documents)

    def test_source_and_licence_are_named(self, documents: list[Document]) -> None:
        """``unknown`` is a valid licence, an empty one is not."""
        assert not [document.key for document in documents if not document.source or not document.licence]

    def test_documents_are_deterministic(self, make_source: Maker, documents: list[Document]) -> None:
        """Two sources of the same corpus give equal documents in the same order."""
        source = make_source()
        for _ in range(2):
            assert list(islice(source.documents(), self.limit)) == documents

    def test_readers_do_not_disturb_each_other(self, make_source: Maker, documents: list[Document]) -> None:
        """Each call of `documents` starts at the first, independently of other readers."""
        source = make_source()
        first = source.documents()
        assert list(islice(first, 2)) == documents[:2]
        assert next(source.documents()) == documents[0]
        assert list(islice(first, 2)) == documents[2:4]

    def test_both_sides_of_the_split_are_found(self, documents: list[Document]) -> None:
        """The corpus is large enough to train and evaluate on, and does not repeat one text."""
        split = scan(documents, heldout=0.5)
        assert 0 < sum(map(split.is_heldout, documents)) < len(documents)
        assert split.num_documents > 1

    def test_fingerprint_is_short_and_stable(self, make_source: Maker) -> None:
        """Every source of the corpus gives the same one, before and after reading: it is the cache key of shards."""
        source = make_source()
        fingerprint = source.fingerprint()
        assert 8 <= len(fingerprint) <= 128 and fingerprint.isascii() and fingerprint.isprintable()
        next(source.documents())
        assert source.fingerprint() == make_source().fingerprint() == fingerprint

    def test_fingerprints_of_corpora_differ(self, make_source: Maker, make_other: Maker) -> None:
        """Different corpora have different ones, otherwise they would share cached shards."""
        assert make_other().fingerprint() != make_source().fingerprint()

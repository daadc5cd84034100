"""Builds the tokenised shards of a corpus once and reuses them: ``<cache>/data/<name>-<key>/``.

The key hashes everything that the shards depend on (the source's fingerprint, the tokenizer, the split). A directory is
either complete or absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from arcforge_core.config.schema import DataConfig, TokenizerConfig
from arcforge_core.console.progress import say, track
from arcforge_core.contracts.data import Document, DocumentSource, Encoder, EncodingSource, Example
from arcforge_core.data.split import RULE, Split, key_hash, scan_source
from arcforge_core.data.tokens.shards import Shard, ShardWriter, token_dtype
from arcforge_core.errors import DataError
from arcforge_core.files.atomic import creating
from arcforge_core.files.cache import cache_folder
from arcforge_core.files.checksums import file_sha256
from arcforge_core.tokenizer.tokenizer import SPECIAL_TOKENS, SPLIT, Tokenizer, train_tokenizer

T = TypeVar("T")

SCHEMA = 3
BATCH_CHARACTERS = 2_000_000
SAMPLE_CHARACTERS = 1 << 16
HELDOUT_FILE = "heldout.jsonl"


def cache_root(config: DataConfig) -> Path:
    """Returns ``data.cache_dir``, else ``$ARCFORGE_CACHE``, else ``~/.cache/arcforge``."""
    return cache_folder("data", config.cache_dir)


def shard_recipe(config: DataConfig, source: DocumentSource, vocab_size: int) -> dict[str, Any]:
    """Returns everything that the content of the shards depends on."""
    tokenizer: dict[str, Any]
    if config.tokenizer.path is None:
        tokenizer = {
            "vocab_size": vocab_size,
            "train_bytes": config.tokenizer.train_bytes,
            "split": SPLIT,
            "special": SPECIAL_TOKENS,
        }
    else:
        tokenizer = {"sha256": Tokenizer.load(config.tokenizer.path).sha256}
    if isinstance(source, EncodingSource) and config.tokenizer.path is not None:  # a trained one always has ours
        template = Tokenizer.load(config.tokenizer.path).chat_template or ""
        tokenizer["chat_template"] = hashlib.sha256(template.encode()).hexdigest()
    return {
        "schema": SCHEMA,
        "source": config.name,
        "fingerprint": source.fingerprint(),
        "heldout": config.heldout,
        "split": RULE if config.heldout else None,
        "tokenizer": tokenizer,
    }


def build_shards(config: DataConfig, source: DocumentSource, vocab_size: int, progress: bool = True) -> Path:
    """Returns the directory of the corpus's shards, building it unless it exists and is complete.

    Args:
        config: the data config.
        source: its documents.
        vocab_size: entries of the tokenizer, if one must be trained.
        progress: whether to show progress on standard error.

    Raises:
        DataError: no usable text, too little text for the vocabulary, or a cache that cannot be written.
    """
    recipe = shard_recipe(config, source, vocab_size)
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    root = cache_root(config)
    folder = root / f"{config.name}-{key}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{folder.name}.lock"):
            if folder.exists():
                try:
                    manifest = read_manifest(folder)
                except DataError as damage:
                    say(f"cached shards are damaged and are rebuilt: {damage}")
                    shutil.rmtree(folder)
                else:
                    if progress:
                        say(f"using cached shards {folder} ({summary(manifest)})")
                    return folder
            _build_into(folder, config, source, recipe, vocab_size, progress)
    except OSError as error:
        raise DataError(f"data.cache_dir: cannot write shards below {root}: {error.strerror or error}") from error
    return folder


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns a finished directory's manifest after opening every shard.

    Raises:
        DataError: a file is missing, truncated or has a damaged header.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'manifest.json'}: {error}") from error
    for shard in manifest["shards"]:
        Shard.open(folder / shard["file"], token_dtype(manifest["tokenizer"]["vocab_size"]))
    heldout = manifest["heldout_texts"]
    path = folder / heldout["file"]
    if not path.is_file() or path.stat().st_size != heldout["size"]:
        raise DataError(f"{path}: missing or truncated")
    Tokenizer.load(folder / "tokenizer")
    return manifest


def verify_hashes(folder: Path) -> None:
    """Reads every file of a directory and compares it with the manifest.

    Raises:
        DataError: names the first file whose contents have changed.
    """
    manifest = read_manifest(folder)
    for entry in [*manifest["shards"], manifest["heldout_texts"]]:
        if file_sha256(folder / entry["file"]) != entry["sha256"]:
            raise DataError(f"{folder / entry['file']}: its contents differ from the manifest")


def summary(manifest: dict[str, Any]) -> str:
    """Returns the manifest's totals in one line."""
    totals: Counter[str] = Counter()
    for sources in manifest["splits"].values():
        for counts in sources.values():
            totals.update(counts)
    ratio = totals["bytes"] / max(1, totals["tokens"])
    return f"{totals['documents']:,} documents, {totals['tokens']:,} tokens, {ratio:.2f} bytes per token"


def _build_into(
    folder: Path, config: DataConfig, source: DocumentSource, recipe: dict[str, Any], vocab_size: int, progress: bool
) -> None:
    with creating(folder) as temporary:
        split = scan_source(source, config.heldout, lambda read: _shown(read, "reading documents", None, progress))
        tokenizer = _tokenizer(config.tokenizer, vocab_size, source, split, progress)
        tokenizer.save(temporary / "tokenizer")
        tokenised = _tokenise(temporary, source, split, tokenizer, progress)
        manifest = {
            **recipe,
            "tokenizer": {
                "sha256": tokenizer.sha256,
                "vocab_size": tokenizer.vocab_size,
                "path": config.tokenizer.path,
            },
            "dropped": {"duplicates": split.duplicates, "empty": split.empty},
            "near_copies": len(split.moved),
            **tokenised,
        }
        with (temporary / "manifest.json").open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2)
    if progress:
        dropped = f", {split.duplicates:,} duplicates left out" if split.duplicates else ""
        say(f"wrote shards {folder} ({summary(manifest)}{dropped})")


def _tokenizer(
    config: TokenizerConfig, vocab_size: int, source: DocumentSource, split: Split, progress: bool
) -> Tokenizer:
    """Loads the tokenizer, or trains one on an even sample of the training side."""
    if config.path is not None:
        return Tokenizer.load(config.path)
    rate = config.train_bytes / split.num_bytes

    def sample() -> Iterator[str]:
        for document in split.kept(source.documents()):
            if split.is_heldout(document):
                continue
            text = source.text(document) if isinstance(source, EncodingSource) else document.text
            if rate >= 1:
                yield text
                continue
            for start in range(0, len(text), SAMPLE_CHARACTERS):
                if key_hash(f"{document.key}@{start}") < rate * 2**64:
                    yield text[start : start + SAMPLE_CHARACTERS]

    return train_tokenizer(_shown(sample(), f"training BPE with {vocab_size:,} entries", None, progress), vocab_size)


def _tokenise(
    folder: Path, source: DocumentSource, split: Split, tokenizer: Tokenizer, progress: bool
) -> dict[str, Any]:
    """Writes shards and held-out texts; returns their part of the manifest."""
    counts: dict[str, dict[str, Counter[str]]] = {"train": {}, "heldout": {}}
    licences: Counter[str] = Counter()
    writers: dict[tuple[str, str], ShardWriter] = {}
    encoder = source.encoder(tokenizer) if isinstance(source, EncodingSource) else PlainEncoder(tokenizer)
    documents = _shown(split.kept(source.documents()), "tokenising documents", split.num_documents, progress)
    with contextlib.ExitStack() as stack:
        heldout_texts = stack.enter_context((folder / HELDOUT_FILE).open("w", encoding="utf-8"))
        for document, examples in _encoded(documents, encoder):
            side = "heldout" if split.is_heldout(document) else "train"
            for example in examples:
                writer = writers.get((side, document.source))
                if writer is None:
                    stem = folder / f"{side}-{len(writers):03d}"
                    writer = stack.enter_context(ShardWriter(stem, tokenizer.vocab_size))
                    writers[side, document.source] = writer
                writer.add(example.ids, example.num_bytes, example.unlearnt, example.trained)
                count = counts[side].setdefault(document.source, Counter())
                count.update(documents=1, tokens=len(example.ids), bytes=example.num_bytes)
            licences[document.licence] += 1
            if side == "heldout" and examples:
                heldout_texts.write(document.to_json())
    if sum(licences.values()) != split.num_documents:
        raise DataError("data: the corpus changed while it was read; start again")
    for side, reason in (("train", "to train on"), ("heldout", "to evaluate on")):
        if not counts[side] and (side == "train" or split.limit):
            raise DataError(f"data.heldout: of {split.num_documents} documents none is left {reason}; add documents")
    return {
        "splits": {side: {name: dict(c) for name, c in of.items()} for side, of in counts.items()},
        "licences": dict(licences),
        "byte_counts": "table" if encoder.exact else "spread",
        "shards": [
            {"split": side, "source": name, **_described(path)}
            for (side, name), writer in writers.items()
            for path in writer.files
        ],
        "heldout_texts": _described(folder / HELDOUT_FILE),
        **({} if isinstance(encoder, PlainEncoder) else {"encoder": encoder.finish(folder)}),
    }


class PlainEncoder:
    """Text between a begin and an end token.

    Attributes:
        exact: so far, the byte lengths of every document's ids sum to its length.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.exact = tokenizer.byte_lengths_V is not None

    def encode_batch(self, documents: list[Document]) -> Iterator[list[Example]]:
        """Yields the one example of each document; texts are tokenised in parallel."""
        tokenizer = self._tokenizer
        context_ids = tokenizer.encode_batch([d.text[: d.learnt_from] for d in documents])
        learnt_ids = tokenizer.encode_batch([d.learnt for d in documents])
        for document, unlearnt, text_ids in zip(documents, context_ids, learnt_ids, strict=True):
            num_bytes = len(document.learnt.encode())
            if self.exact and tokenizer.byte_lengths_V is not None:  # a normalizer may have changed the text
                self.exact = int(tokenizer.byte_lengths_V[text_ids].sum()) == num_bytes
            ids = [tokenizer.bos_id, *unlearnt, *text_ids, tokenizer.eos_id]
            yield [Example(ids, num_bytes, 1 + len(unlearnt) if unlearnt else 0)]


def _encoded(
    documents: Iterable[Document], encoder: Encoder | PlainEncoder
) -> Iterator[tuple[Document, list[Example]]]:
    for batch in _batches(documents):
        if isinstance(encoder, PlainEncoder):
            yield from zip(batch, encoder.encode_batch(batch), strict=True)
        else:
            yield from ((document, encoder.encode(document)) for document in batch)


def _described(path: Path) -> dict[str, Any]:
    return {"file": path.name, "size": path.stat().st_size, "sha256": file_sha256(path)}


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents into batches large enough to use all cores and small enough for memory."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _shown(items: Iterable[T], description: str, total: int | None, progress: bool) -> Iterable[T]:
    return track(items, description, total) if progress else items


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process build while others on the same machine wait and then find the result."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

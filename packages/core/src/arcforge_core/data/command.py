"""The job ``data``: builds the shards of a corpus and prints their statistics."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from arcforge_core.configs import DataCommandConfig
from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.data.split import PHRASE
from arcforge_core.data.tokens.build import verify_hashes
from arcforge_core.data.tokens.overlap import heldout_overlap
from arcforge_core.data.tokens.pipeline import build_data, with_tokenizer


def build(config: DataCommandConfig) -> Result:
    """Builds or finds the shards, prints their statistics and returns their folder with the counts by split.

    Raises:
        CheckpointError: ``init`` is no checkpoint.
        DataError: the corpus cannot be used, or a file differs from its hash.
    """
    data = config.data if config.init is None else with_tokenizer(config.data, config.init)
    corpus = build_data(data, model_vocab_size=config.vocab_size)
    if config.verify:
        verify_hashes(corpus.folder)
        say(f"verified {len(corpus.manifest['shards'])} shards and the held-out texts against their hashes")
    console = Console(markup=False, highlight=False)
    console.print(statistics(corpus.manifest))
    console.print("\n".join(notes(corpus.manifest)), soft_wrap=True)
    console.print(str(corpus.folder), soft_wrap=True)
    shares = {}
    if config.overlap:
        shares["overlap"] = heldout_overlap(corpus, PHRASE)
        say(f"{shares['overlap']:.2%} of the distinct {PHRASE}-word phrases of held-out text occur in training text")
    totals = {
        f"{split} {name}": sum(counts[name] for counts in sources.values())
        for split, sources in corpus.manifest["splits"].items()
        for name in ("documents", "tokens", "bytes")
    }
    return Result(corpus.folder, totals | shares)


def statistics(manifest: dict[str, Any]) -> Table:
    """Returns a table of the manifest's counts by split and source."""
    table = Table("split", "source")
    for column in ("documents", "tokens", "bytes", "bytes/token"):
        table.add_column(column, justify="right")
    for split, sources in manifest["splits"].items():
        for source, counts in sources.items():
            numbers = [f"{counts[name]:,}" for name in ("documents", "tokens", "bytes")]
            table.add_row(split, source, *numbers, f"{counts['bytes'] / counts['tokens']:.3f}")
    return table


def notes(manifest: dict[str, Any]) -> list[str]:
    """Returns lines about the tokenizer, the licences and the documents left out."""
    tokenizer = manifest["tokenizer"]
    origin = tokenizer["path"] or "trained on this corpus"
    licences = (f"{name} ({count:,} documents)" for name, count in sorted(manifest["licences"].items()))
    dropped = manifest["dropped"]
    return [
        f"tokenizer: {tokenizer['vocab_size']:,} entries, {origin}",
        f"licences: {', '.join(licences)}",
        f"left out: {dropped['duplicates']:,} exact duplicates, {dropped['empty']:,} empty documents",
        f"near copies kept on one side of the split: {manifest['near_copies']:,} documents",
        *(conversation_notes(manifest["encoder"]) if "encoder" in manifest else ()),
    ]


def conversation_notes(figures: dict[str, Any]) -> list[str]:
    """Returns lines about a corpus of conversations: tokens with loss, and records left out by each rule."""
    totals = {name: sum(c.get(name, 0) for c in figures["corpora"].values()) for name in ("tokens", "trained")}
    rules = (f"{sum(counts.values()):,} {rule}" for rule, counts in sorted(figures["rejected"].items()))
    modes = (f"{counts['conversations']:,} {mode}" for mode, counts in sorted(figures["modes"].items()))
    return [
        f"trained on: {totals['trained']:,} of {totals['tokens']:,} tokens; thinking: {', '.join(modes) or 'none'}",
        f"records left out: {', '.join(rules) or 'none'}",
        "statistics.html and rejected.jsonl lie beside the shards",
    ]

"""``arcforge-data``: builds the shards of a corpus and prints what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arcforge_core.cli.errors import run_main
from arcforge_core.cli.progress import say
from arcforge_core.config.compose import run_app
from arcforge_core.configs import DataCommandConfig

if TYPE_CHECKING:
    from rich.table import Table


def build(config: DataCommandConfig) -> None:
    """Builds or finds the shards; torch is imported here, so that ``--help`` and Tab completion do without."""
    from rich.console import Console

    from arcforge_core.data.build import verify_hashes
    from arcforge_core.data.pipeline import build_data

    corpus = build_data(config.data, model_vocab_size=config.vocab_size)
    if config.verify:
        verify_hashes(corpus.folder)
        say(f"verified {len(corpus.manifest['shards'])} shards and the held-out texts against their hashes")
    console = Console(markup=False, highlight=False)
    console.print(statistics(corpus.manifest))
    console.print("\n".join(notes(corpus.manifest)), soft_wrap=True)
    console.print(str(corpus.folder), soft_wrap=True)


def statistics(manifest: dict[str, Any]) -> Table:
    """Returns a table of the manifest's counts by split and source."""
    from rich.table import Table

    table = Table("split", "source")
    for column in ("documents", "tokens", "bytes", "bytes/token"):
        table.add_column(column, justify="right")
    for split, sources in manifest["splits"].items():
        for source, counts in sources.items():
            numbers = [f"{counts[name]:,}" for name in ("documents", "tokens", "bytes")]
            table.add_row(split, source, *numbers, f"{counts['bytes'] / counts['tokens']:.3f}")
    return table


def notes(manifest: dict[str, Any]) -> list[str]:
    """Returns lines about the tokenizer, the licences and what was left out."""
    tokenizer = manifest["tokenizer"]
    origin = tokenizer["path"] or "trained on this corpus"
    licences = (f"{name} ({count:,} documents)" for name, count in sorted(manifest["licences"].items()))
    dropped = manifest["dropped"]
    return [
        f"tokenizer: {tokenizer['vocab_size']:,} entries, {origin}",
        f"licences: {', '.join(licences)}",
        f"left out: {dropped['duplicates']:,} exact duplicates, {dropped['empty']:,} empty documents",
        *(conversation_notes(manifest["encoder"]) if "encoder" in manifest else ()),
    ]


def conversation_notes(figures: dict[str, Any]) -> list[str]:
    """Returns lines about a corpus of conversations: what carries loss, and which rules left what out."""
    totals = {name: sum(c.get(name, 0) for c in figures["corpora"].values()) for name in ("tokens", "trained")}
    rules = (f"{sum(counts.values()):,} {rule}" for rule, counts in sorted(figures["rejected"].items()))
    modes = (f"{counts['conversations']:,} {mode}" for mode, counts in sorted(figures["modes"].items()))
    return [
        f"trained on: {totals['trained']:,} of {totals['tokens']:,} tokens; thinking: {', '.join(modes) or 'none'}",
        f"records left out: {', '.join(rules) or 'none'}",
        "statistics.html and rejected.jsonl lie beside the shards",
    ]


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("data", DataCommandConfig, build)

"""Schemas of core's data sources, torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from arcforge_core.config.schema import DataConfig, check_at_least, check_between, check_choice, check_minimums
from arcforge_core.errors import ConfigError, DataError, nearest


@dataclass
class StdlibDataConfig(DataConfig):
    """The standard library of the running Python and its `pydoc_data` text."""

    name: str = "stdlib"
    functions: float = 0.7
    """Share of the training tokens taken from single functions of the training files: each is a document of its own,
    without indentation and docstring; 0 trains on files only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("data.functions", self.functions, 0.0, 0.95)


@dataclass
class FilesDataConfig(DataConfig):
    """Files and folders."""

    name: str = "files"
    paths: list[str] = field(default_factory=list)
    """Files or folders; folders are read recursively."""
    suffixes: list[str] = field(default_factory=list)
    """Only files with these endings in folders, e.g. [.py, .md]; empty selects every readable text."""
    text_field: str = "text"
    """Column of jsonl and parquet rows with the text."""
    document_bytes: int | None = None
    """Cut text files at line ends into documents of about this number of bytes; None keeps a file whole."""
    licence: str = "unknown"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("data.document_bytes", self.document_bytes, 1)
        for suffix in self.suffixes:
            if not suffix.startswith("."):
                raise ConfigError("data.suffixes", suffix, "each starts with a dot, e.g. .py")


def check_paths(paths: Sequence[str]) -> None:
    """Raises `DataError` for a path of `data.paths` that does not exist."""
    for path in paths:
        if not Path(path).expanduser().exists():
            raise DataError(f"data.paths={path!r}: no such file or directory")


@dataclass
class HubDataConfig(DataConfig):
    """A data set of the `datasets` library: a hub name or a local path."""

    name: str = "hub"
    dataset: str = ""
    split: str = "train"
    text_field: str = "text"
    licence: str = "unknown"


CORPORA = ("chat", "reasoning", "agent")

CONVERSATION_FILTERS = ("format", "truncation", "repetition", "duplicates", "near_duplicates", "answers")


@dataclass
class ConversationsDataConfig(DataConfig):
    """Conversations for supervised fine-tuning, in three corpora; each is a list of files and folders."""

    name: str = "conversations"
    packing: str = "best_fit"
    """Conversations are never cut, so ``best_fit``."""
    chat: list[str] = field(default_factory=list)
    """General chat: jsonl, json and parquet files, folders of them, folders that `datasets` saved."""
    reasoning: list[str] = field(default_factory=list)
    """Reasoning: logic, mathematics, science."""
    agent: list[str] = field(default_factory=list)
    """Coding and agents with tools."""
    folders: list[str] = field(default_factory=list)
    """Folders with sub-folders ``chat``, ``reasoning`` and ``agent``, as ``arcforge-conversations`` (in ``train``) and
    ``arcforge-sample`` (in ``kept``) write them; those that exist are read after the files above."""
    weights: dict[str, float] = field(default_factory=dict)
    """Share of the tokens of ``chat``, ``reasoning`` and ``agent``, in any unit; absent means 1. Without any,
    an epoch has every conversation once."""
    format: str = "auto"
    """Format of records: ``openai`` (messages) or ``sharegpt`` (from, value); ``auto`` detects it for each."""
    thinking: str = "interleaved"
    """Mode of records with reasoning that name no mode: ``interleaved``, ``preserved``; those without reasoning are
    ``off``."""
    mask_errors: bool = True
    """Keep messages of the assistant whose tool calls failed out of the loss; they stay in the conversation."""
    on_invalid: str = "report"
    """``report`` lists invalid records and leaves them out; ``fail`` stops at the first one."""
    filters: list[str] = field(default_factory=lambda: ["format", "truncation", "repetition", "duplicates", "answers"])
    """Of ``format``, ``truncation``, ``repetition``, ``duplicates``, ``near_duplicates`` and ``answers`` (runs the
    checkers of the records)."""
    max_repetition: float = 0.5
    """filters=repetition: maximum share of an answer's phrases that repeat earlier ones."""
    near_duplicates: float = 0.8
    """filters=near_duplicates: minimum share of common phrases at which one of two conversations is left out."""
    max_tokens: int = 202_752
    """Maximum tokens of a conversation; training rows have trainer.sequence_length + 1."""
    too_long: str = "reject"
    """``reject`` leaves longer conversations out; ``cut`` cuts them after the assistant's last turn that fits."""
    min_trained_tokens: int = 1
    """Minimum tokens with loss in a conversation."""
    licence: str = "unknown"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packing != "best_fit":
            raise ConfigError("data.packing", self.packing, "conversations are never cut: must be best_fit")
        for name in self.weights:
            check_choice("data.weights", name, CORPORA)
            if not getattr(self, name) and not self.folders:
                raise ConfigError(f"data.weights.{name}", self.weights[name], f"data.{name} names no files")
            if not 0 < self.weights[name] < float("inf"):
                raise ConfigError(f"data.weights.{name}", self.weights[name], "must be greater than 0")
        for name in self.filters:
            check_choice("data.filters", name, CONVERSATION_FILTERS)
        check_choice("data.format", self.format, ("auto", "openai", "sharegpt"))
        check_choice("data.thinking", self.thinking, ("interleaved", "preserved"))
        check_choice("data.on_invalid", self.on_invalid, ("report", "fail"))
        check_choice("data.too_long", self.too_long, ("reject", "cut"))
        check_between("data.max_repetition", self.max_repetition, 0.0, 1.0)
        check_between("data.near_duplicates", self.near_duplicates, 0.1, 1.0)
        check_minimums(self, "data", max_tokens=2, min_trained_tokens=1)


@dataclass
class RetrievalDataConfig(DataConfig):
    """Generated episodes: text with needles in it, then questions and answers."""

    name: str = "retrieval"
    episodes: int = 4000
    """Documents."""
    min_characters: int = 500
    max_characters: int = 1000
    """Bounds of an episode's size; it should fit in a row (trainer.sequence_length), at two to three characters per
    token."""
    min_pairs: int = 4
    max_pairs: int = 16
    """Bounds of the number of key-value pairs in an episode; at most one per hundred characters."""
    learn: str = "questions"
    """``questions``: only questions and answers carry the loss, because the first occurrence of keys and values is
    unpredictable; ``all``: every token does."""
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "data", episodes=1, min_pairs=1, seed=0)
        check_choice("data.learn", self.learn, ("questions", "all"))
        check_at_least("data.max_pairs", self.max_pairs, self.min_pairs)
        check_at_least("data.min_characters", self.min_characters, 100 * self.min_pairs)
        check_at_least("data.max_characters", self.max_characters, self.min_characters)


@dataclass
class MixtureDataConfig(DataConfig):
    """Several sources."""

    name: str = "mixture"
    sources: dict[str, DataConfig] = field(default_factory=dict)
    """Filled on the command line or in YAML: ``+data@data.sources.code=stdlib``."""
    weights: dict[str, float] = field(default_factory=dict)
    """Share of each source's tokens, in any unit; absent means 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, weight in self.weights.items():
            if name not in self.sources:
                known = ", ".join(self.sources) or "none"
                hint = nearest(name, self.sources)
                raise ConfigError(f"data.weights.{name}", weight, f"no source of that name; there are {known}{hint}")
            if not 0 < weight < float("inf"):
                raise ConfigError(f"data.weights.{name}", weight, "must be greater than 0; leave a source out instead")
        for name, source in self.sources.items():
            if isinstance(source, MixtureDataConfig):
                raise ConfigError(f"data.sources.{name}", "mixture", "a mixture holds plain sources")
            for shared in fields(DataConfig):
                value = getattr(source, shared.name)
                if shared.name != "name" and value != getattr(type(source)(), shared.name):
                    raise ConfigError(
                        f"data.sources.{name}.{shared.name}", value, f"belongs to the mixture: data.{shared.name}"
                    )

"""``data=conversations``: records that were parsed and passed the filters, as documents."""

from __future__ import annotations

import functools
import json
import tempfile
import weakref
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arcforge_core.chat.load import build_chat_template
from arcforge_core.configs import CORPORA, ConversationsDataConfig
from arcforge_core.console.progress import say
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.contracts.data import Document
from arcforge_core.data.conversations.encoder import ConversationEncoder
from arcforge_core.data.conversations.filters import NEAR_DUPLICATES, NEAR_PHRASE, build_filters, words_of
from arcforge_core.data.conversations.parse import parse
from arcforge_core.data.conversations.records import Row, find_files, read_rows
from arcforge_core.data.conversations.rejections import INVALID, Rejection, summary
from arcforge_core.data.near import Phrases, words
from arcforge_core.data.sources.text import digest, file_stamps
from arcforge_core.errors import DataError
from arcforge_core.tokenizer.tokenizer import Tokenizer


@dataclass
class Reading:
    """Results of one pass over all records.

    Attributes:
        folder: contains the kept documents, one per line.
        read: number of records by corpus.
        rejections: rejected records.
    """

    folder: Path
    read: Counter[str] = field(default_factory=Counter)
    rejections: list[Rejection] = field(default_factory=list)

    @property
    def kept(self) -> Path:
        """The file of the kept documents."""
        return self.folder / "kept.jsonl"

    def drop(self, keys: Container[str]) -> None:
        """Removes the documents with these keys."""
        before = self.kept.rename(self.folder / "before.jsonl")
        with before.open(encoding="utf-8") as lines, self.kept.open("w", encoding="utf-8") as kept:
            kept.writelines(line for line in lines if Document.from_json(line).key not in keys)
        before.unlink()


class ConversationsSource:
    """Conversations from files; an `EncodingSource`.

    A document's text is its record as JSON; its ``task`` decides its side of the split. Filters run once: the first
    call reads everything into a temporary file, which later calls read.

    Attributes:
        weights: shares of the training tokens by corpus; None treats all corpora as one list.
    """

    def __init__(self, config: ConversationsDataConfig) -> None:
        self._config = config
        paths = {"chat": config.chat, "reasoning": config.reasoning, "agent": config.agent}
        self._files = {name: find_files(of, f"data.{name}") for name, of in paths.items()}
        for folder in map(Path, config.folders):
            corpora = [name for name in paths if (folder / name).is_dir()]
            found = {name: find_files([str(folder / name)], "data.folders") for name in corpora}
            self._files = {name: files + found.get(name, []) for name, files in self._files.items()}
            if not found:
                say(f"data.folders: {folder} holds no conversations")
        if not any(self._files.values()) and config.folders:
            raise DataError(f"data.folders={config.folders}: no conversations there, and no other files are named")
        if not any(self._files.values()):
            raise DataError(f"data=conversations: name files, e.g. data.chat=[my.jsonl]; corpora: {', '.join(CORPORA)}")
        named = [name for name, files in self._files.items() if files]
        self.weights = {name: config.weights.get(name, 1.0) for name in named} if config.weights else None

    def fingerprint(self) -> str:
        """Returns a hash of the files' names, sizes and times, and of how they are read and filtered."""
        config = self._config
        how = (
            config.format, config.thinking, config.mask_errors, config.filters, config.max_repetition, config.licence,
            config.near_duplicates, config.max_tokens, config.too_long, config.min_trained_tokens, bool(config.weights),
        )  # fmt: skip
        stamps = {  # `datasets` keeps a directory's data in files directly below it
            name: file_stamps(
                inner for path in files for inner in (sorted(path.iterdir()) if path.is_dir() else [path])
            )
            for name, files in self._files.items()
        }
        return digest(how, stamps)

    def documents(self) -> Iterator[Document]:
        """Yields the kept conversations, corpus by corpus, in the order of the files.

        Raises:
            DataError: a file cannot be read; or a record is not a conversation and ``data.on_invalid=fail``.
        """
        with self._reading.kept.open(encoding="utf-8") as lines:
            for line in lines:
                yield Document.from_json(line)

    def text(self, document: Document) -> str:
        """Returns the text of all messages, on which a vocabulary is trained."""
        conversation = self.conversation(document)
        calls = (json.dumps(dict(c.arguments), ensure_ascii=False) for m in conversation.messages for c in m.tool_calls)
        said = (text for m in conversation.messages for text in (m.reasoning or "", m.content))
        tools = (json.dumps(tool.definition, ensure_ascii=False) for tool in conversation.tools)
        return "\n".join(text for text in (*tools, *said, *calls) if text)

    def compared(self, document: Document) -> str:
        """Returns the text of all messages except the system's, without the tools' definitions."""
        return words_of(self.conversation(document))

    def conversation(self, document: Document) -> Conversation:
        """Parses the conversation of a document."""
        return self._parsed(json.loads(document.text))

    def encoder(self, tokenizer: Tokenizer) -> ConversationEncoder:
        """Returns an encoder with the tokenizer's chat template.

        Raises:
            ConfigError: the tokenizer has no chat template.
        """
        reading = self._reading
        template = build_chat_template(tokenizer)
        return ConversationEncoder(self._config, template, self.conversation, reading.read, reading.rejections)

    def _parsed(self, record: dict[str, object]) -> Conversation:
        config = self._config
        return parse(record, config.format, config.thinking, config.mask_errors)

    @functools.cached_property
    def _reading(self) -> Reading:
        folder = tempfile.TemporaryDirectory(prefix="arcforge-conversations-")
        weakref.finalize(self, folder.cleanup)
        reading = Reading(Path(folder.name))
        filters = build_filters(self._config)
        phrases = Phrases(NEAR_PHRASE) if NEAR_DUPLICATES in self._config.filters else None
        origins: dict[str, tuple[str, int, str]] = {}

        def judge(row: Row) -> tuple[str, str] | Conversation:
            """Returns the conversation, or the rule that drops it and the reason."""
            if row.record is None:
                return INVALID, row.reason
            try:
                conversation = self._parsed(row.record)
                for name, rule in filters.items():
                    reason = rule(conversation)
                    if reason is not None:
                        return name, reason
            except BadRecord as error:
                return INVALID, str(error)
            return conversation

        with reading.kept.open("w", encoding="utf-8") as kept:
            for corpus, row in self._rows():
                reading.read[corpus] += 1
                judged = judge(row)
                if isinstance(judged, Conversation):
                    document = self._document(corpus, row, judged)
                    kept.write(document.to_json())
                    if phrases is not None:
                        phrases.add(document.key, words(words_of(judged)))
                        origins[document.key] = row.file, row.line, corpus
                    continue
                rejection = Rejection(row.file, row.line, corpus, *judged)
                if rejection.rule == INVALID and self._config.on_invalid == "fail":
                    raise DataError(f"{row.file}:{row.line}: {rejection.reason} (data.on_invalid=fail)")
                reading.rejections.append(rejection)
        if phrases is not None:
            copies = phrases.copies(self._config.near_duplicates)
            reading.drop(set(copies))
            for key, (other, index) in copies.items():
                reason = f"a near duplicate of {other}: {index:.0%} of their phrases are the same"
                reading.rejections.append(Rejection(*origins[key], NEAR_DUPLICATES, reason))
        if reading.rejections:
            say(f"conversations: {summary(reading.rejections, sum(reading.read.values()))}")
        return reading

    def _rows(self) -> Iterator[tuple[str, Row]]:
        for corpus, files in self._files.items():
            for path in files:
                yield from ((corpus, row) for row in read_rows(path))

    def _document(self, corpus: str, row: Row, conversation: Conversation) -> Document:
        text = json.dumps(row.record, ensure_ascii=False)
        task = (conversation.task,) if conversation.task is not None else ()
        return Document(f"{corpus}/{row.file}:{row.line}", text, corpus, self._config.licence, text_of=task)

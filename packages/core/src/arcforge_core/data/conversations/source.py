"""``data=conversations``: records that were read, understood and let through by the filters, as documents."""

from __future__ import annotations

import functools
import json
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arcforge_core.chat.load import build_chat_template
from arcforge_core.cli.progress import say
from arcforge_core.configs import CORPORA, ConversationsDataConfig
from arcforge_core.contracts.data import Document
from arcforge_core.data.conversations.conversation import BadRecord, Conversation
from arcforge_core.data.conversations.encoder import ConversationEncoder
from arcforge_core.data.conversations.filters import build_filters
from arcforge_core.data.conversations.parse import parse
from arcforge_core.data.conversations.records import Row, find_files, read_rows
from arcforge_core.data.conversations.rejections import INVALID, Rejection, summary
from arcforge_core.data.sources import digest, file_stamps
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import DataError


@dataclass
class Reading:
    """What one pass over all records found.

    Attributes:
        folder: holds the documents that were kept, one a line.
        read: records by corpus.
        rejections: records that were left out.
    """

    folder: Path
    read: Counter[str] = field(default_factory=Counter)
    rejections: list[Rejection] = field(default_factory=list)

    @property
    def kept(self) -> Path:
        """The file with the kept documents."""
        return self.folder / "kept.jsonl"


class ConversationsSource:
    """Conversations from files; an `EncodingSource`.

    A document's text is its record as JSON; what it was made for, its ``task``, decides its side of the split. Filters
    ask once: the first call reads everything into a temporary file that later calls read.

    Attributes:
        weights: shares of the training tokens by corpus; None takes all as one list.
    """

    def __init__(self, config: ConversationsDataConfig) -> None:
        self._config = config
        paths = {"chat": config.chat, "reasoning": config.reasoning, "agent": config.agent}
        self._files = {name: find_files(of, f"data.{name}") for name, of in paths.items()}
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
        stamps = {  # `datasets` keeps a folder's data in files right below it
            name: file_stamps(
                inner for path in files for inner in (sorted(path.iterdir()) if path.is_dir() else [path])
            )
            for name, files in self._files.items()
        }
        return digest(how, stamps)

    def documents(self) -> Iterator[Document]:
        """Yields the conversations that are kept, corpus by corpus, in the order of the files.

        Raises:
            DataError: a file cannot be read; ``data.on_invalid=fail`` and a record is no conversation.
        """
        with self._reading.kept.open(encoding="utf-8") as lines:
            for line in lines:
                yield Document(**json.loads(line))

    def text(self, document: Document) -> str:
        """Returns all that is said in a conversation, for a vocabulary to be trained on."""
        conversation = self.conversation(document)
        calls = (json.dumps(dict(c.arguments), ensure_ascii=False) for m in conversation.messages for c in m.tool_calls)
        said = (text for m in conversation.messages for text in (m.reasoning or "", m.content))
        tools = (json.dumps(tool.definition, ensure_ascii=False) for tool in conversation.tools)
        return "\n".join(text for text in (*tools, *said, *calls) if text)

    def conversation(self, document: Document) -> Conversation:
        """Returns the conversation of a document."""
        return self._parsed(json.loads(document.text))

    def encoder(self, tokenizer: Tokenizer) -> ConversationEncoder:
        """Returns what renders the documents with the tokenizer's chat template.

        Raises:
            ConfigError: it has none.
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

        def judge(row: Row) -> tuple[str, str] | Conversation:
            """Returns the conversation, or which rule leaves it out and why."""
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
                    kept.write(json.dumps(vars(self._document(corpus, row, judged))) + "\n")
                    continue
                rejection = Rejection(row.file, row.line, corpus, *judged)
                if rejection.rule == INVALID and self._config.on_invalid == "fail":
                    raise DataError(f"{row.file}:{row.line}: {rejection.reason} (data.on_invalid=fail)")
                reading.rejections.append(rejection)
        if reading.rejections:
            say(f"conversations: {summary(reading.rejections, sum(reading.read.values()))}")
        return reading

    def _rows(self) -> Iterator[tuple[str, Row]]:
        for corpus, files in self._files.items():
            for path in files:
                yield from ((corpus, row) for row in read_rows(path))

    def _document(self, corpus: str, row: Row, conversation: Conversation) -> Document:
        text = json.dumps(row.record, ensure_ascii=False)
        return Document(
            f"{corpus}/{row.file}:{row.line}", text, corpus, self._config.licence, text_of=conversation.task
        )

"""Renders the conversations of one build and collects their statistics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arcforge_core.configs import ConversationsDataConfig
from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.contracts.data import Document, Example
from arcforge_core.data.conversations.encode import LengthLimits, make_example, turns
from arcforge_core.data.conversations.page import write_page
from arcforge_core.data.conversations.rejections import LENGTH, Rejection
from arcforge_core.data.conversations.statistics import Statistics

REJECTED_FILE, STATISTICS_FILE, PAGE_FILE = "rejected.jsonl", "statistics.json", "statistics.html"


class ConversationEncoder:
    """An `Encoder`.

    Attributes:
        exact: the tokenizer has a table of byte lengths, from which the examples' bytes are counted.
        statistics: of all conversations encoded so far.
    """

    def __init__(
        self,
        config: ConversationsDataConfig,
        template: ChatTemplate,
        conversation: Callable[[Document], Conversation],
        read: Counter[str],
        rejections: Sequence[Rejection],
    ) -> None:
        self._template, self._conversation = template, conversation
        self._limits = LengthLimits(config.max_tokens, config.min_trained_tokens, config.too_long == "cut")
        self._rejections = list(rejections)
        self.exact = template.tokenizer.byte_lengths_V is not None
        self.statistics = Statistics(read)

    def encode(self, document: Document) -> list[Example]:
        """Returns a conversation's examples; records and drops those that are too long or too short."""
        conversation = self._conversation(document)
        examples = []
        for part in turns(conversation):
            try:
                example = make_example(part, self._template, self._limits)
            except BadRecord as error:
                file, _, line = document.key.partition("/")[2].rpartition(":")
                self._rejections.append(Rejection(file, int(line), document.source, LENGTH, str(error)))
                continue
            self.statistics.add_example(document.source, conversation, example)
            examples.append(example)
        if examples:
            self.statistics.add_conversation(document.source, conversation)
        return examples

    def finish(self, folder: Path) -> dict[str, Any]:
        """Writes the rejected records, the statistics and their page; returns the statistics."""
        with (folder / REJECTED_FILE).open("w", encoding="utf-8") as file:
            for rejection in self._rejections:
                file.write(json.dumps(asdict(rejection), ensure_ascii=False) + "\n")
        figures = self.statistics.figures(self._rejections)
        (folder / STATISTICS_FILE).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        write_page(folder / PAGE_FILE, figures, self._rejections)
        return {"kind": "conversations", **figures}

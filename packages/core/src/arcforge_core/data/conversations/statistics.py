"""Statistics of a corpus of conversations: tokens, trained share, lengths, modes, tools, sources, rejected records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from arcforge_core.contracts.conversation import Conversation
from arcforge_core.contracts.data import Example
from arcforge_core.data.conversations.rejections import Rejection

UNNAMED = "(not named)"


class Statistics:
    """Accumulates counts over conversations and examples.

    Args:
        read: records by corpus, including the rejected ones.
    """

    def __init__(self, read: Counter[str]) -> None:
        self._read = read
        self._counts: dict[str, dict[str, Counter[str]]] = {
            name: defaultdict(Counter) for name in ("corpora", "sources", "modes")
        }
        self._lengths: Counter[int] = Counter()
        self._longest = 0
        self._tools: Counter[str] = Counter()
        self._masked: Counter[str] = Counter()

    def add_conversation(self, corpus: str, conversation: Conversation) -> None:
        """Counts a kept conversation, its messages and calls."""
        for counts in self._of(corpus, conversation):
            counts["conversations"] += 1
        for message in conversation.messages:
            if message.role == "assistant":
                self._masked["messages of the assistant"] += 1
                self._masked["of them kept out of the loss"] += not message.trained
            for call in message.tool_calls:
                self._tools[call.name] += 1

    def add_example(self, corpus: str, conversation: Conversation, example: Example) -> None:
        """Counts an example's tokens; its length is counted at the next power of two."""
        trained = sum(example.trained or ())
        for counts in self._of(corpus, conversation):
            counts.update(examples=1, tokens=len(example.ids), trained=trained)
        self._lengths[1 << (len(example.ids) - 1).bit_length()] += 1
        self._longest = max(self._longest, len(example.ids))

    def _of(self, corpus: str, conversation: Conversation) -> list[Counter[str]]:
        groups = {"corpora": corpus, "sources": conversation.source or UNNAMED, "modes": conversation.mode}
        return [self._counts[kind][name] for kind, name in groups.items()]

    def figures(self, rejections: Sequence[Rejection]) -> dict[str, Any]:
        """Returns all counts; ``read`` of a corpus is the sum of kept and rejected records."""
        rejected: dict[str, Counter[str]] = defaultdict(Counter)
        for rejection in rejections:
            rejected[rejection.rule][rejection.corpus] += 1
        return {
            "read": dict(self._read),
            **{kind: {name: dict(c) for name, c in of.items()} for kind, of in self._counts.items()},
            "lengths": {str(limit): self._lengths[limit] for limit in sorted(self._lengths)},
            "longest": self._longest,
            "tools": dict(self._tools.most_common()),
            "messages": dict(self._masked),
            "rejected": {rule: dict(counts) for rule, counts in rejected.items()},
        }

"""One sequence while it is generated: a few integers, its tokens and its pages."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.model.generate import output_of
from arcforge_core.model.sampling import Sampler, Token
from arcforge_serving.kvcache.radix import Node
from arcforge_serving.stream import Stream

Rank = tuple[float, int]
"""A place in the queue; no two sequences have the same, or two of them could each wait for the other's pages."""


class Sequence:
    """State of a sequence. Positions 0 to ``cached`` lie in pages; ``length - cached`` are to be computed.

    Attributes:
        tokens: ids of the prompt and of what was generated, as far as known.
        prompt_length: how many of them are the prompt.
        cached: positions whose entries are in pages once all launched steps have run.
        pending: tokens that launched steps draw: the host does not know them yet.
        reused: prompt tokens that were found in the prefix cache when it was first admitted.
        slot: its row of the page table and of states while it runs, else None.
        pages: its pages in order; those of `nodes` belong to the tree, the others to the sequence.
        nodes: its path in the tree, which begins at `root`.
        rank: place in the queue, the lower the earlier; it stays, so that nobody waits for ever.
        latest: the id that the last launched step drew; the worker's.
        drafts: what the MTP module expects behind `tokens`; the next step checks it.
        mask: what the grammar allows next, where that was asked for drafting; the worker's.
        generated, prompt_tokens: what goes into the output.
        versions: (weight version, tokens) spans of `generated`.
        drafted, accepted: drafts that were checked so far, and those of them that were right.
        asked, begun: when it came and when it was first admitted; seconds of the monotonic clock.
    """

    def __init__(self, prompt: Seq[int], params: SamplingParams, index: int, vocabulary: int, priority: int) -> None:
        self.params, self.priority = params, priority
        self.rank: Rank = (0.0, 0)
        self.drafts: list[int] = []
        self.mask: Tensor | None = None
        self.tokens, self.prompt_length = list(prompt), len(prompt)
        self.cached = self.pending = self.latest = 0
        self.reused: int | None = None
        self.slot: int | None = None
        self.pages: list[int] = []
        self.nodes: list[Node] = []
        self.root: Node | None = None
        self.sampler = Sampler(params, index, prompt, vocabulary)
        self.matcher = None if params.matcher is None else params.matcher()
        self.generated: list[Token] = []
        self.prompt_tokens: list[Token] = []
        self.versions: list[tuple[int, int]] = []
        self.drafted = self.accepted = 0
        self.finished = False
        self.asked, self.begun = time.monotonic(), 0.0
        self.stream = Stream()

    @property
    def length(self) -> int:
        """Tokens, those that are being drawn included."""
        return len(self.tokens) + self.pending

    @property
    def most(self) -> int:
        """Tokens that it may reach; the last of them is never computed with."""
        return self.prompt_length + self.params.max_new_tokens

    @property
    def remaining(self) -> int:
        """Tokens that are still to be computed with, as far as they are there or being drawn."""
        return min(self.length, self.most - 1) - self.cached

    @property
    def decodes(self) -> bool:
        """Whether all that is left is the token drawn last."""
        return self.remaining == 1 and self.length > self.prompt_length

    def take(self, token: Token, version: int) -> None:
        """Appends a token that a step drew."""
        self.tokens.append(token.id)
        self.generated.append(token)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))

    def output(self, reason: str, version: int) -> GenerationOutput:
        """Returns what was generated; `version` stands for a sequence without a token."""
        versions = self.versions or [(version, 0)]
        output = output_of(self.params, self.generated, self.prompt_tokens, reason, versions, self.reused or 0)
        queued = (self.begun or time.monotonic()) - self.asked
        return replace(output, queue_seconds=queued, drafted_tokens=self.drafted, accepted_tokens=self.accepted)

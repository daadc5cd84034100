"""One sequence while it is generated: a few integers, its tokens and its pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams, Token
from arcforge_core.generation.generate import output_of
from arcforge_core.generation.sampling import Sampler
from arcforge_serving.engine.kvcache.radix import Node
from arcforge_serving.engine.stream import Stream

Rank = tuple[float, int]
"""A place in the queue; no two sequences have the same, or two of them could each wait for the other's pages."""


class SequenceState:
    """State of a sequence. Positions 0 to ``cached`` lie in pages; ``length - cached`` are to be computed.

    Attributes:
        tokens: ids of the prompt and of what was generated, as far as known.
        prompt_length: how many of them are the prompt.
        cached: positions whose entries are in pages once all launched steps have run.
        pending: tokens that launched steps sample: the host does not know them yet.
        reused: prompt tokens that were found in the prefix cache when it was first admitted.
        slot: its row of the page table and of states while it runs, else None.
        pages: its pages in order; those of `nodes` belong to the tree, the others to the sequence.
        nodes: its path in the tree, which begins at `root`.
        base: the root at which it has started last; None before its first start.
        owner: who it is for; owners share the engine.
        refusable: whether it may be refused while it waits, for another owner's.
        salt: sequences of different salts share no pages.
        session: name of the conversation that it continues; empty for none.
        rank: place in the queue, lower is earlier; it never changes, so that no sequence starves.
        latest: the id that the last launched step sampled; the worker's.
        drafts: tokens that the MTP module drafted after `tokens`; the next step verifies them.
        mask: ids that the grammar allows next, if drafting asked for them; the worker's.
        generated, prompt_tokens: parts of the output.
        versions: (weight version, tokens) spans of `generated`.
        drafted, accepted: drafts verified so far, and those accepted.
        asked, begun: when it was submitted and when it was first admitted; seconds of the monotonic clock.
    """

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, index: int, vocabulary: int, priority: int
    ) -> None:
        self.params, self.priority = params, priority
        self.owner = self.salt = self.session = ""
        self.refusable = False
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
        self.base: Node | None = None
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
        """Tokens, those being sampled included."""
        return len(self.tokens) + self.pending

    @property
    def most(self) -> int:
        """Tokens that it may reach; the last of them is never computed with."""
        return self.prompt_length + self.params.max_new_tokens

    @property
    def remaining(self) -> int:
        """Tokens that are still to be computed with, as far as they are known or being sampled."""
        return min(self.length, self.most - 1) - self.cached

    @property
    def decodes(self) -> bool:
        """Whether only the last sampled token remains to be computed."""
        return self.remaining == 1 and self.length > self.prompt_length

    def take(self, token: Token, version: int) -> None:
        """Appends a sampled token."""
        self.tokens.append(token.id)
        self.generated.append(token)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))

    def output(self, reason: str, version: int) -> GenerationOutput:
        """Returns the output; `version` is that of a sequence without a token."""
        versions = self.versions or [(version, 0)]
        output = output_of(self.params, self.generated, self.prompt_tokens, reason, versions, self.reused or 0)
        queued = (self.begun or time.monotonic()) - self.asked
        return replace(output, queue_seconds=queued, drafted_tokens=self.drafted, accepted_tokens=self.accepted)

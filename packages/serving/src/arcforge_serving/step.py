"""A step: built on the host ahead of time, computed by the worker.

Shapes: N segments, T tokens, R rows that are drawn from, P pages, S tokens of a prompt, D hidden size, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.generate import evaluating, score_hidden
from arcforge_core.model.sampling import Token
from arcforge_serving.drafting import Drafter
from arcforge_serving.draw import Drawn, draw
from arcforge_serving.kvcache.store import PageStore
from arcforge_serving.kvcache.tier import FileTier
from arcforge_serving.scheduler import Move, Scheduler, Segment, Spill
from arcforge_serving.sequence import Sequence
from arcforge_serving.trace import Trace


@dataclass
class Step:
    """What the worker needs.

    Attributes:
        segments: in the order of the batch.
        moves: what happens to pages first.
        tokens_T: ids, 0 where the step before draws them.
        holes: rows of `tokens_T` and the sequences whose latest token belongs there.
        batch: the layout.
        version: of the weights.
        drafting: tokens to draft behind the step, for each sequence that draws.
        in_turns: whether the step behind this one waits for its outcome, which lets the worker ask the grammars.
        ahead_T: behind each token its next one, 0 where the step draws it; None where nothing follows the steps.
        pages_NP, rooms: of the segments that draw all pages, and the positions that they hold.
        allowed: for each segment that draws, what its grammar lets through; set while the step is computed.
        outcome: what the worker returns.
    """

    segments: list[Segment]
    moves: list[Move]
    tokens_T: Tensor
    holes: list[tuple[int, Sequence]]
    batch: SequenceBatch
    version: int
    drafting: int = 0
    in_turns: bool = False
    ahead_T: Tensor | None = None
    pages_NP: Tensor | None = None
    rooms: list[int] = field(default_factory=list)
    allowed: Future[list[Tensor | None]] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)

    @property
    def draws(self) -> list[Sequence]:
        """Sequences that get a token."""
        return [segment.sequence for segment in self.drawing]

    @cached_property
    def drawing(self) -> list[Segment]:
        """Their segments."""
        return [segment for segment in self.segments if segment.draws]

    @cached_property
    def drawn_rows(self) -> list[int]:
        """The first row of each of them whose next token is drawn."""
        ends = itertools.accumulate(segment.length for segment in self.segments)
        rows = zip(ends, self.segments, strict=True)
        return [end - 1 - segment.drafts for end, segment in rows if segment.draws]


@dataclass(frozen=True)
class Outcome:
    """What a step gave.

    Attributes:
        drawn: of each sequence that draws.
        drafts: of each of them, for the next step to check.
        prompt_tokens: by segment number, the prompt's tokens that its rows say something about.
    """

    drawn: list[Drawn]
    drafts: list[list[int]]
    prompt_tokens: dict[int, list[Token]]


def build(
    scheduler: Scheduler, segments: list[Segment], version: int, drafting: int = 0, in_turns: bool = False
) -> Step:
    """Lays the segments' tokens one behind the other and finds their cache rows."""
    size, lengths = scheduler.size, [segment.length for segment in segments]
    starts_N = np.array([segment.start for segment in segments])
    lengths_N = np.array(lengths)
    slots_N = np.array([segment.sequence.slot for segment in segments])
    ends_N = lengths_N.cumsum()
    positions_T = np.arange(ends_N[-1]) + np.repeat(starts_N - ends_N + lengths_N, lengths_N)
    rows_T = scheduler.table_NP[np.repeat(slots_N, lengths_N), positions_T // size] * size + positions_T % size
    most = -(-int((starts_N + lengths_N).max()) // size)
    tokens: list[int] = []
    holes = []
    for segment in segments:
        sequence, end = segment.sequence, segment.start + segment.length - segment.drafts
        tokens += sequence.tokens[segment.start : end]
        if end > len(sequence.tokens):
            holes.append((len(tokens), sequence))
            tokens.append(0)
        tokens += sequence.drafts[: segment.drafts]
    batch = SequenceBatch.build(
        lengths,
        starts_N.tolist(),
        write_slots_T=torch.from_numpy(rows_T),
        pages_NP=torch.from_numpy(scheduler.table_NP[slots_N, :most]),
        state_slots_N=torch.from_numpy(slots_N),
    )
    moves, scheduler.moves = scheduler.moves, []
    step = Step(segments, moves, torch.tensor(tokens), holes, batch, version, drafting, in_turns)
    if scheduler.draft_tokens:
        ahead: list[int] = []
        for segment in segments:
            known = segment.sequence.tokens[segment.start + 1 : segment.start + segment.length + 1]
            ahead += known + [0] * (segment.length - len(known))
        step.ahead_T = torch.tensor(ahead)
    if drafting and step.drawing:
        held = [len(segment.sequence.pages) for segment in step.drawing]
        drawing_N = np.array([segment.sequence.slot for segment in step.drawing])
        step.pages_NP = torch.from_numpy(scheduler.table_NP[drawing_N, : max(held)])
        step.rooms = [pages * size for pages in held]
    return step


class Worker:
    """Computes steps, one at a time; all that touches the cache's tensors happens here, in the order of the steps."""

    def __init__(
        self, model: CausalLM, store: PageStore, tier: FileTier | None, trace: Trace, drafter: Drafter | None = None
    ) -> None:
        self.model, self.store, self.tier, self.trace, self.drafter = model, store, tier, trace, drafter

    def run(self, step: Step) -> None:
        """Computes a step and sets its outcome, or what went wrong."""
        try:
            with self.trace.span("step", segments=len(step.segments), tokens=len(step.tokens_T)):
                outcome = self._compute(step)
        except Exception as error:
            step.outcome.set_exception(error)
        else:
            step.outcome.set_result(outcome)

    @torch.inference_mode()
    def _compute(self, step: Step) -> Outcome:
        if step.moves and self.drafter is not None:
            self.drafter.catch_up()
        for move in step.moves:
            self._move(move)
        for row, sequence in step.holes:
            step.tokens_T[row] = sequence.latest
        device = self.model.device
        with evaluating(self.model) if self.model.training else nullcontext():
            with self.trace.span("forward"):
                hidden_TD = self.model.hidden(
                    step.tokens_T.to(device),
                    step.batch.to(device),
                    self.store,  # type: ignore[arg-type]
                ).hidden_TD
                firsts = zip(step.drawn_rows, step.drawing, strict=True)
                rows = [first + place for first, segment in firsts for place in range(1 + segment.drafts)]
                drawn_RD = hidden_TD[torch.tensor(rows, dtype=torch.int64, device=device)]
                logits_RV = self.model.logits(drawn_RD) if rows else None
            prompt_tokens = self._score_prompts(step, hidden_TD, step.batch.cu_query[1:].tolist())
            with self.trace.span("sample", rows=len(rows)):
                allowed = None if step.in_turns else step.allowed.result()
                drawn: list[Drawn] = []
                if logits_RV is not None:
                    drawn = draw(
                        step.drawing, logits_RV.cpu(), self.model.likeliest(logits_RV), allowed, self.model.race
                    )
            drafts: list[list[int]] = [[] for _ in drawn]
            if self.drafter is not None:
                with self.trace.span("draft", tokens=step.drafting):
                    self.drafter.follow(step, hidden_TD, drawn)
                    if step.drafting:
                        drafts = self.drafter.draft(step, hidden_TD, drawn)
            return Outcome(drawn, drafts, prompt_tokens)

    @torch.inference_mode()
    def catch_up(self) -> None:
        """Has the cache hold all that it will; no step is being computed."""
        if self.drafter is not None:
            self.drafter.catch_up()

    def _move(self, move: Move) -> None:
        if isinstance(move, Spill):
            assert self.tier is not None
            self.tier.write(move.ticket, self.store.read(move.page))
        else:
            self.store.write(move.page, move.record)

    def _score_prompts(self, step: Step, hidden_TD: Tensor, ends: Seq[int]) -> dict[int, list[Token]]:
        """Returns what the rows of prompts say about the prompts' next tokens, where that was asked for."""
        scored = {}
        for number, (segment, end) in enumerate(zip(step.segments, ends, strict=True)):
            sequence = segment.sequence
            if sequence.params.prompt_logprobs and segment.start < sequence.prompt_length - 1:
                targets = sequence.tokens[segment.start + 1 : sequence.prompt_length][: segment.length]
                first = end - segment.length
                hidden_SD = hidden_TD[first : first + len(targets)]
                scored[number] = score_hidden(self.model, hidden_SD, targets, sequence.params.top_logprobs)
        return scored

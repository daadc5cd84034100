"""A step: built on the host ahead of time, computed by the worker.

Shapes: N segments, T tokens, P pages, S tokens of a prompt, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.generate import evaluating, score_hidden
from arcforge_core.model.sampling import Token, finite_rows, next_tokens
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
        allowed: for each segment that draws, what its grammar lets through; set while the step is computed.
        outcome: what the worker returns.
    """

    segments: list[Segment]
    moves: list[Move]
    tokens_T: Tensor
    holes: list[tuple[int, Sequence]]
    batch: SequenceBatch
    version: int
    allowed: Future[list[Tensor | None]] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)

    @property
    def draws(self) -> list[Sequence]:
        """Sequences that get a token."""
        return [segment.sequence for segment in self.segments if segment.draws]


@dataclass(frozen=True)
class Outcome:
    """What a step gave.

    Attributes:
        tokens: of each sequence that draws; None where the logits are not finite.
        prompt_tokens: by segment number, the prompt's tokens that its rows say something about.
    """

    tokens: list[Token | None]
    prompt_tokens: dict[int, list[Token]]


def build(scheduler: Scheduler, segments: list[Segment], version: int) -> Step:
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
        tokens += segment.sequence.tokens[segment.start : segment.start + segment.length]
        if segment.start + segment.length > len(segment.sequence.tokens):
            holes.append((len(tokens), segment.sequence))
            tokens.append(0)
    batch = SequenceBatch.build(
        lengths,
        starts_N.tolist(),
        write_slots_T=torch.from_numpy(rows_T),
        pages_NP=torch.from_numpy(scheduler.table_NP[slots_N, :most]),
        state_slots_N=torch.from_numpy(slots_N),
    )
    moves, scheduler.moves = scheduler.moves, []
    return Step(segments, moves, torch.tensor(tokens), holes, batch, version)


class Worker:
    """Computes steps, one at a time; all that touches the cache's tensors happens here, in the order of the steps."""

    def __init__(self, model: CausalLM, store: PageStore, tier: FileTier | None, trace: Trace) -> None:
        self.model, self.store, self.tier, self.trace = model, store, tier, trace

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
                ends = step.batch.cu_query[1:].tolist()
                rows = [end - 1 for segment, end in zip(step.segments, ends, strict=True) if segment.draws]
                drawn_ND = hidden_TD[torch.tensor(rows, dtype=torch.int64, device=device)]
                logits_NV = self.model.logits(drawn_ND) if rows else hidden_TD.new_empty(0, 0)
            prompt_tokens = self._score_prompts(step, hidden_TD, ends)
            with self.trace.span("sample", rows=len(rows)):
                return Outcome(self._sample(logits_NV, step.draws, step.allowed.result()), prompt_tokens)

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

    def _sample(self, logits_NV: Tensor, sequences: Seq[Sequence], allowed: Seq[Tensor | None]) -> list[Token | None]:
        """Draws for every row whose logits are finite; the others' sequences fail, and nobody else."""
        if not sequences:
            return []
        likeliest, logits_NV = self.model.likeliest(logits_NV), logits_NV.cpu()
        whole = [n for n, finite in enumerate(finite_rows(likeliest)) if finite]
        drawn: list[Token | None] = [None] * len(sequences)
        if whole:
            if len(whole) < len(sequences):
                logits_NV, likeliest = logits_NV[whole], (likeliest[0][whole], likeliest[1][whole])
            samplers = [sequences[n].sampler for n in whole]
            tokens = next_tokens(logits_NV, samplers, [allowed[n] for n in whole], likeliest)
            for n, token in zip(whole, tokens, strict=True):
                drawn[n] = token
                sequences[n].latest = token.id
        return drawn

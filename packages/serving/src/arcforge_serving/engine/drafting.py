"""The MTP module: it follows every step of the main model, so that it can draft after any. See docs/mtp.md.

Its cache is in step with the layers': after each step it holds an entry for every token whose next one is known, made
of the main model's hidden state and that next token. Drafting appends entries of drafted tokens and hidden states of
its own; the step that checks the drafts writes the main model's over them, and nothing reads them in between.

Shapes: T tokens of a step, N sequences that draft, D hidden, V vocabulary, W short list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.contracts.attention import WritesCache
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.generation.recorded import Recorded
from arcforge_core.generation.sampling import SamplingOps, choose
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.engine.kvcache.store import PageStore
from arcforge_serving.engine.sampling import Sampled

if TYPE_CHECKING:
    from arcforge_serving.engine.scheduler import Segment
    from arcforge_serving.engine.step import Step

SHORT_LIST = 1024
"""Tokens that are drafted, where there are more than four times as many: the head's product is most of a draft."""
KEPT_FOR = 256
"""Drafting steps until the short list is rebuilt."""


PUT_OFF = 32
"""Steps whose entries are put off at most."""


class DraftHead:
    """The main model's head for the tokens that have come most often so far; ids decide where none did.

    Only drafts come from it, so that what it leaves out costs drafts and changes no output.

    Args:
        model: whose head it is.
        size: W.
    """

    def __init__(self, model: CausalLM, size: int = SHORT_LIST) -> None:
        self.model, self.size = model, size
        self.counts_V = np.zeros(model.config.vocab_size, dtype=np.int64)
        self.uses, self.version = 0, -1
        self.ids_W: Tensor | None = None
        self.weight_WD: Tensor | None = None

    def see(self, tokens_T: Tensor) -> None:
        np.add.at(self.counts_V, tokens_T.numpy(), 1)

    def logits(self, hidden_ND: Tensor, version: int) -> Tensor:
        """Returns fp32 logits [N, V] on the host, -inf for ids off the list; `version` is of the weights."""
        weight_VD: Tensor | None = getattr(self.model.lm_head, "weight", None)
        vocabulary = len(self.counts_V)
        plain = weight_VD is not None and weight_VD.shape == (vocabulary, hidden_ND.shape[1])
        if not plain or 4 * self.size >= vocabulary:  # a head of another kind, or a small one
            return self.model.logits(hidden_ND).float().cpu()
        assert weight_VD is not None
        if self.weight_WD is None or version != self.version or self.uses >= KEPT_FOR:
            ids_W = np.sort(np.argsort(-self.counts_V, kind="stable")[: self.size])
            self.ids_W, self.uses, self.version = torch.from_numpy(ids_W), 0, version
            self.weight_WD = weight_VD[self.ids_W.to(weight_VD.device)].to(hidden_ND.dtype)
        self.uses += 1
        assert self.ids_W is not None
        logits_NV = torch.full((len(hidden_ND), len(self.counts_V)), float("-inf"))
        return logits_NV.index_copy_(1, self.ids_W, F.linear(hidden_ND, self.weight_WD).float().cpu())


class Drafter:
    """Keeps the module in step and drafts; on the worker's thread."""

    def __init__(self, model: CausalLM, store: PageStore, head: DraftHead | None = None) -> None:
        self.model, self.store, self.head = model, store, head or DraftHead(model)
        self.recorded, self.ops = Recorded(model, store), SamplingOps(model)  # type: ignore[arg-type]
        assert model.mtp is not None
        self._puts_off = isinstance(model.mtp.self_attn, WritesCache)
        self._pending: list[tuple[Tensor, Tensor, SequenceBatch]] = []  # next tokens, hidden states and places of steps

    def follow(self, step: Step, hidden_TD: Tensor, sampled: Sequence[Sampled]) -> None:
        """Writes the entries of a step's tokens, each with its known or sampled next token."""
        assert step.ahead_T is not None
        for row, each in zip(step.sample_rows, sampled, strict=True):
            for place, token in enumerate(each.tokens):
                step.ahead_T[row + place] = token.id
        self.head.see(step.tokens_T)
        plain = not step.in_turns and len(step.tokens_T) == len(step.sampling)
        if plain and self._puts_off:
            self._pending.append((step.ahead_T, hidden_TD, step.batch))
            if len(self._pending) >= PUT_OFF:
                self.catch_up()
            return
        self.catch_up()
        device = self.model.device
        self.recorded.write_cache(step.ahead_T.to(device), hidden_TD, step.batch.to(device))

    def catch_up(self) -> None:
        """Writes the entries of steps that neither drafted nor read a prompt: they are put off, as many cost as one.

        The next step that does either reads them. This must be called before a page is moved.
        """
        pending, self._pending = self._pending, []
        last: dict[int, int] = {}  # a page may have gone from one sequence to another meanwhile
        places = [place for *_, batch in pending for place in batch.write_slots_T.tolist()]  # type: ignore[union-attr]
        for row, place in enumerate(places):
            last[place] = row
        if not last:
            return
        rows, device = torch.tensor(list(last.values())), self.model.device
        ahead_T = torch.cat([ahead_T for ahead_T, _, _ in pending])[rows].to(device)
        hidden_TD = torch.cat([hidden_TD for _, hidden_TD, _ in pending])[rows.to(device)]
        positions_T = torch.cat([batch.positions_T for *_, batch in pending])[rows].to(device)
        batch = dataclasses.replace(
            SequenceBatch.build([len(rows)], device=device),
            positions_T=positions_T,
            write_slots_T=torch.tensor(list(last), device=device),
        )
        self.recorded.write_cache(ahead_T, hidden_TD, batch)

    def draft(self, step: Step, hidden_TD: Tensor, sampled: Sequence[Sampled]) -> list[list[int]]:
        """Returns the drafts of each segment that sampled: `step.drafting` of them, or as many as there is room for."""
        drafts: list[list[int]] = [[] for _ in sampled]
        last = [row + len(each.tokens) - 1 for row, each in zip(step.sample_rows, sampled, strict=True)]
        wanted = [self._wanted(step, number, each) for number, each in enumerate(sampled)]
        active = [n for n, count in enumerate(wanted) if count > 0]
        if not active:
            return drafts
        segments = step.sampling
        positions = {n: _position(segments[n], sampled[n]) for n in active}
        tokens = {n: sampled[n].tokens[-1].id for n in active}
        hidden_ND = hidden_TD[torch.tensor([last[n] for n in active], device=hidden_TD.device)]
        for depth in range(max(wanted)):
            kept = [row for row, n in enumerate(active) if wanted[n] > depth]
            if len(kept) < len(active):
                hidden_ND, active = hidden_ND[kept], [active[row] for row in kept]
            batch = self._batch(step, active, [positions[n] + depth for n in active])
            ahead_N = torch.tensor([tokens[n] for n in active], device=hidden_ND.device)
            hidden_ND = self.recorded.draft(ahead_N, hidden_ND, batch)
            logits_NV = self.head.logits(hidden_ND, step.version)
            masks = [segments[n].sequence.mask if depth == 0 else None for n in active]
            self._widen(logits_NV, masks)
            samplers = [segments[n].sequence.sampler for n in active]
            ids = choose(logits_NV, samplers, masks, sample_op=self.ops.sample)
            for n, sampler, token in zip(active, samplers, ids, strict=True):
                sampler.observe(token)
                drafts[n].append(token)
                tokens[n] = token
        for segment, made in zip(segments, drafts, strict=True):
            for token in reversed(made):
                segment.sequence.sampler.forget(token)
        return drafts

    @staticmethod
    def _widen(logits_NV: Tensor, masks: Sequence[Tensor | None]) -> None:
        """Where a grammar allows nothing of the short list, lets the lowest id that it allows be the draft."""
        for logits_V, mask_V in zip(logits_NV, masks, strict=True):
            if mask_V is not None and not (logits_V.isfinite() & mask_V).any():
                logits_V[int(mask_V.int().argmax())] = 0.0

    def _wanted(self, step: Step, number: int, sampled: Sampled) -> int:
        """Returns how many tokens to draft: of the output's length, and of the pages."""
        segment = step.sampling[number]
        sequence = segment.sequence
        if not sampled.tokens or sampled.error is not None or sampled.tokens[-1].id in sequence.params.stop_token_ids:
            return 0
        if sequence.matcher is not None:
            try:
                if sequence.matcher.finished:
                    return 0
                sequence.mask = sequence.matcher.allowed()
            except Exception as error:  # of this request's grammar
                sampled.error = error
                return 0
        position = _position(segment, sampled)
        return min(step.drafting, sequence.most - position - 3, step.rooms[number] - position)

    def _batch(self, step: Step, active: Sequence[int], positions: Sequence[int]) -> SequenceBatch:
        assert step.pages_NP is not None
        pages_NP, size = step.pages_NP[list(active)], self.store.page_size
        slots_T = [int(pages_P[p // size]) * size + p % size for pages_P, p in zip(pages_NP, positions, strict=True)]
        ones = [1] * len(positions)
        return SequenceBatch.build(
            ones, positions, write_slots_T=torch.tensor(slots_T), pages_NP=pages_NP, device=self.model.device
        )


def _position(segment: Segment, sampled: Sampled) -> int:
    """Returns the last position that was computed with a token that counts."""
    return segment.start + segment.length - 1 - segment.drafts + len(sampled.tokens) - 1

"""Decoding steps, recorded once per shape and then replayed; a smaller step is padded to a recorded shape.

Shapes: T tokens, D hidden, N sequences, P pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from arcforge_core.contracts.attention import LayerCache, Recordable, Rope
from arcforge_core.contracts.batch import Group, Pages, SequenceBatch
from arcforge_core.contracts.hardware import Recorder
from arcforge_core.model.cache import PagedCache, PagedLayerCache
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.mtp import MtpModule
from arcforge_core.ops import Fused

Inputs = tuple[Tensor, ...]
"""Tensors [T, D]: the embedded tokens of a step; for an MTP step also the hidden states."""

STEPS = 64
"""Maximum number of recordings per cache; the least recently used one is evicted."""
PADDING = 32
"""Tokens computed in vain after which a shape gets a recording of its own: about the cost of making one."""
PADDING_KEYS = 1 << 14
"""Maximum number of keys that repetitions of a sequence may read in a step."""
TRIES = 3
"""Shapes after which a model is not recorded if none of them could be."""


class InPages(PagedLayerCache):
    """A layer's cache that never returns a view: keys move between steps, and the page table gives their addresses."""

    def read(self, name: str, batch: SequenceBatch, group: Group, window: int | None = None) -> Tensor:
        """Raises `TypeError`: a layer that reads its cache this way must return None from `branch`."""
        raise TypeError(f"a step that reads {name} without the page table cannot be replayed")

    def paged(self, name: str, batch: SequenceBatch, group: Group) -> tuple[Tensor, Pages | None]:
        """Returns an entry's rows and the pages of the group's keys."""
        return self.entries[name], group.pages(self.page_size)


@dataclass(frozen=True)
class Shape:
    """The sizes and branches that a recording was made for.

    Attributes:
        queries: new tokens of each sequence.
        pages: columns of the page table.
        branches: the results of `Recordable.branch`, by layer.
    """

    queries: tuple[int, ...]
    pages: int
    branches: tuple[Hashable, ...]

    def padding_for(self, other: Shape) -> int | None:
        """Returns the tokens by which a step of the other shape must be padded to have this one; None if it cannot.

        A step is padded with repetitions of its last sequence, which compute and store the same values.
        """
        more = len(self.queries) - len(other.queries)
        if more < 0 or self.pages < other.pages or self.branches != other.branches:
            return None
        last = other.queries[-1]
        return more * last if self.queries == other.queries + more * (last,) else None


@dataclass
class Step:
    """A recording and its input tensors; `again` replays it."""

    inputs: Inputs
    rope: Rope
    batch: SequenceBatch
    again: Callable[[], Tensor]

    def run(self, inputs: Inputs, rope: Rope, batch: SequenceBatch) -> Tensor:
        """Returns the hidden states [T, D] of a step of the recorded shape, or of one that is padded to it."""
        (group,), (own,) = batch.plan.groups(), self.batch.plan.groups()
        assert group.pages_NP is not None and own.pages_NP is not None
        assert batch.write_slots_T is not None and self.batch.write_slots_T is not None
        queries, cu_key = batch.query_lengths(), group.cu_key.tolist()
        with torch.inference_mode():  # tensors created in inference mode can only be written to in it
            places, values = (*self.inputs, *self.rope, self.batch.write_slots_T), (*inputs, *rope, batch.write_slots_T)
            for place, value in zip(places, values, strict=True):
                _fill(place, value, queries[-1])
            _fill(own.pages_NP[:, : group.pages_NP.shape[1]], group.pages_NP, 1)
            keys = own.cu_key[: len(cu_key)].copy_(group.cu_key)
            if len(keys) < len(own.cu_key):
                more = torch.arange(1, 1 + len(own.cu_key) - len(keys), dtype=keys.dtype)
                own.cu_key[len(keys) :] = cu_key[-1] + more * (cu_key[-1] - cu_key[-2])
        return self.again()[: batch.num_tokens].clone()


def _fill(place: Tensor, rows: Tensor, last: int) -> None:
    """Writes rows, and repeats the last ones in the rest of their place."""
    place[: len(rows)] = rows
    if len(rows) < len(place):
        place[len(rows) :].unflatten(0, (-1, last))[:] = rows[len(rows) - last :]


Run = Callable[[Inputs, SequenceBatch, Rope, Sequence[PagedLayerCache]], Tensor]
"""A step: inputs, batch, rotary tables and the layers' caches to hidden states [T, D]."""


@dataclass(frozen=True)
class Part:
    """A part of a model whose steps are recorded.

    Attributes:
        name: key of its recordings.
        root: the module that contains it.
        blocks: its layers.
        layers: their caches.
        run: one step.
    """

    name: str
    root: nn.Module
    blocks: Sequence[nn.Module]
    layers: Sequence[PagedLayerCache]
    run: Run


class RecordedSteps:
    """The recorded steps of a part of one model on one cache."""

    def __init__(self, model: CausalLM, part: Part, recorder: Recorder) -> None:
        self.model, self.part, self.layers, self.recorder = model, part, list(part.layers), recorder
        self.steps: OrderedDict[Shape, Step | None] = OrderedDict()
        self.padded: dict[Shape, int] = {}  # tokens computed in vain, of shapes without a recording
        modules = list(part.root.modules())
        held = [values for m in modules for values in (m._parameters, m._buffers)]
        self.places = [(values, name) for values in held for name, x in values.items() if x is not None]
        self.hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        attentions = [block.self_attn for block in part.blocks]
        self.attentions = [attention for attention in attentions if isinstance(attention, Recordable)]
        self.recordable = len(self.attentions) == len(attentions)
        self.rows = self._rows()
        self.made_for, self.rooms = self._state(), self._rooms()

    def _rows(self) -> int:
        """Returns the largest number of tokens that the recorder and all bound fused ops support."""
        parts = (part for module in self.part.root.modules() for part in vars(module).values())
        return min([self.recorder.rows, *(part.rows for part in parts if isinstance(part, Fused) and part.rows)])

    def _state(self) -> tuple[Any, ...]:
        """Returns the state besides shapes that a recording depends on: addresses of weights and cache, bound ops."""
        weights = [place[name] for place, name in self.places]
        caches = [x for layer in self.layers for x in layer.entries.values()]
        tensors = [0 if x is None else x.data_ptr() for x in (*weights, *caches)]
        return self.model.bindings, torch.get_num_threads(), *tensors

    def _rooms(self) -> set[tuple[int, int]]:
        """Returns the different (rows of a page, rows of the cache) of the layers."""
        layers = [layer for layer in self.layers if layer.entries]  # others keep states alone
        return {(layer.page_size, min(len(entry) for entry in layer.entries.values())) for layer in layers}

    def replay(self, inputs: Inputs, rope: Rope, batch: SequenceBatch) -> Tensor | None:
        """Returns the hidden states [T, D] of the part; None if the step has to be run instead."""
        if batch.num_tokens > self.rows or not self.recordable or any(self.hooks):
            return None
        branches = [attention.branch(batch) for attention in self.attentions]
        if None in branches:
            return None
        if self._state() != self.made_for:
            self.steps.clear()
            self.padded.clear()
            self.made_for, self.rooms = self._state(), self._rooms()
        (group,) = batch.plan.groups()
        assert group.pages_NP is not None
        self._check_pages(group, batch)
        width = 1 << (group.pages_NP.shape[1] - 1).bit_length()
        shape = Shape(tuple(batch.query_lengths()), width, tuple(branches))
        served = self._find(shape, group.key_lengths[-1])
        if served is not None:
            self.steps.move_to_end(served)
            step = self.steps[served]
            return None if step is None else step.run(inputs, rope, batch)
        if not self._deserves(shape):
            return None
        self.steps[shape], hidden_TD = self._record(inputs, rope, batch, width)
        self.padded.pop(shape, None)
        if len(self.steps) > STEPS:
            self.steps.popitem(last=False)
        return hidden_TD

    def _find(self, shape: Shape, keys: int) -> Shape | None:
        """Returns the recorded shape that serves a step whose last sequence has `keys` keys, if there is one."""
        if shape in self.steps:
            return shape
        roomy: list[tuple[int, Shape]] = []
        for other, step in self.steps.items():
            padding = None if step is None else other.padding_for(shape)
            more = len(other.queries) - len(shape.queries)
            if padding is not None and more * keys <= PADDING_KEYS:
                roomy.append((padding, other))
        if not roomy:
            return None
        padding, chosen = min(roomy, key=lambda pair: pair[0])
        self.padded[shape] = self.padded.get(shape, 0) + padding
        return chosen if self.padded[shape] <= PADDING else None

    def _deserves(self, shape: Shape) -> bool:
        """Returns whether a shape is worth recording: of sequences with unequal numbers of tokens the second time.

        These numbers differ from step to step where drafts are cut short.
        """
        if len(self.steps) >= TRIES and not any(self.steps.values()):
            return False
        if len(self.padded) > STEPS:
            self.padded.clear()
        seen = shape in self.padded
        self.padded.setdefault(shape, 0)
        return seen or len(set(shape.queries)) == 1

    def _check_pages(self, group: Group, batch: SequenceBatch) -> None:
        """Raises `ValueError` for rows outside the cache, which the C code would read or write."""
        assert group.pages_NP is not None and batch.write_slots_T is not None
        first, last = (int(slot) for slot in batch.write_slots_T.aminmax())
        for page_size, rows in self.rooms:
            if group.num_pages * page_size > rows:
                raise ValueError(f"the page table names page {group.num_pages - 1}, the cache has {rows} rows")
            if max(group.key_lengths) > group.pages_NP.shape[1] * page_size:
                raise ValueError(f"{max(group.key_lengths)} keys do not fit into {group.pages_NP.shape[1]} pages")
            if first < 0 or last >= rows:
                raise ValueError(f"new entries go to rows {first} to {last}, the cache has {rows} rows")

    def _record(
        self, inputs: Inputs, rope: Rope, batch: SequenceBatch, width: int
    ) -> tuple[Step | None, Tensor | None]:
        """Runs a step; returns its recording and its hidden states, or None twice."""
        assert batch.pages_NP is not None and batch.write_slots_T is not None
        pages_NP = batch.pages_NP.new_zeros(batch.num_segments, width)
        pages_NP[:, : batch.pages_NP.shape[1]] = batch.pages_NP
        own = SequenceBatch.build(
            batch.query_lengths(), batch.past_lengths, write_slots_T=batch.write_slots_T.clone(), pages_NP=pages_NP
        )
        own_inputs, own_rope = tuple(x_TD.clone() for x_TD in inputs), (rope[0].clone(), rope[1].clone())
        (group,) = own.plan.groups()
        # these properties are computed lazily: read them before the recording starts
        own.num_tokens, own.page_runs, group.num_pages, group.key_lengths  # noqa: B018
        caches = [InPages(layer.entries, layer.states, layer.page_size) for layer in self.layers]
        outs: list[Tensor] = []

        def run() -> Tensor:
            outs.append(self.part.run(own_inputs, own, own_rope, caches))
            return outs[0]

        again = self.recorder.record(run)
        return (None, None) if again is None else (Step(own_inputs, own_rope, own, again), outs[0].clone())


class Recorded:
    """A model's steps on one cache: replays a decoding step that matches a recording, otherwise runs the model.

    Recordings are freed with this object: keep one per cache.
    """

    def __init__(self, model: CausalLM, cache: PagedCache) -> None:
        self.model, self.cache = model, cache
        self.steps: dict[str, RecordedSteps] = {}
        self.layers = Part("layers", model.model, list(model.model.layers), cache.layers, partial(_run_layers, model))

    def hidden(self, tokens_T: Tensor, batch: SequenceBatch) -> Tensor:
        """Returns the normed hidden states [T, D] of `CausalLM.hidden`."""
        self.model.check_positions(batch)
        return self._step(self.layers, (self.model.embed(tokens_T),), batch)

    def draft(self, next_tokens_T: Tensor, hidden_TD: Tensor, batch: SequenceBatch) -> Tensor:
        """Returns the normed hidden states [T, D] of an MTP step on ``cache.mtp``.

        They can be passed to the head, and to the next step, which appends a position.
        """
        return self._step(self._mtp("draft", _draft), (self.model.embed(next_tokens_T), hidden_TD), batch)

    def write_cache(self, next_tokens_T: Tensor, hidden_TD: Tensor, batch: SequenceBatch) -> None:
        """Writes the MTP module's entries of tokens into ``cache.mtp``, from their hidden states and next tokens.

        An entry depends only on its own token's two inputs, so entries may be written in any order.
        """
        self._step(self._mtp("write", _write), (self.model.embed(next_tokens_T), hidden_TD), batch)

    def _mtp(self, name: str, run: Callable[..., Tensor]) -> Part:
        mtp, cache = self.model.mtp, self.cache.mtp
        if mtp is None or cache is None:
            raise ValueError("drafting needs an MTP module and a cache with entries for it")
        return Part(name, mtp, [mtp], [cache], partial(run, mtp))

    def _step(self, part: Part, inputs: Inputs, batch: SequenceBatch) -> Tensor:
        """Replays or runs a step of a part and returns its hidden states [T, D]."""
        model, rope = self.model, self.model.rope(batch)
        decoding = batch.plan.only_decodes and not torch.is_grad_enabled() and not model.training
        if decoding and (recorder := model.ops.recorder) is not None:
            if part.name not in self.steps:
                self.steps[part.name] = RecordedSteps(model, part, recorder)
            replayed_TD = self.steps[part.name].replay(inputs, rope, batch)
            if replayed_TD is not None:
                return replayed_TD
        return part.run(inputs, batch, rope, part.layers)


def _run_layers(
    model: CausalLM, inputs: Inputs, batch: SequenceBatch, rope: Rope, caches: Sequence[LayerCache]
) -> Tensor:
    (x_TD,) = inputs
    return model.run_layers(x_TD, batch, rope, caches).hidden_TD


def _draft(mtp: MtpModule, inputs: Inputs, batch: SequenceBatch, rope: Rope, caches: Sequence[LayerCache]) -> Tensor:
    embedding_TD, hidden_TD = inputs
    return mtp.step(embedding_TD, hidden_TD, batch, rope, caches[0]).x_TD


def _write(mtp: MtpModule, inputs: Inputs, batch: SequenceBatch, rope: Rope, caches: Sequence[LayerCache]) -> Tensor:
    embedding_TD, hidden_TD = inputs
    mtp.write_cache(embedding_TD, hidden_TD, batch, rope, caches[0])
    return embedding_TD  # unused, but a recording returns a tensor

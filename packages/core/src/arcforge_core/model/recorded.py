"""Decoding steps that are recorded once per shape and repeated afterwards.

Shapes: T tokens, D hidden, N sequences, P pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from arcforge_core.contracts.attention import Recordable
from arcforge_core.contracts.batch import Group, Pages, SequenceBatch
from arcforge_core.model.cache import PagedLayerCache
from arcforge_core.model.fused import FEW_ROWS, Fused

if TYPE_CHECKING:
    from arcforge_core.model.cache import PagedCache
    from arcforge_core.model.causal_lm import CausalLM

STEPS = 64
"""Recordings of a cache at most; the one that has waited longest makes room."""


class InPages(PagedLayerCache):
    """A layer's cache that never gives a view: the next step's keys lie elsewhere, and the page table says where."""

    def read(self, name: str, batch: SequenceBatch, group: Group, window: int | None = None) -> Tensor:
        """Refuses.

        Raises:
            TypeError: always; a layer that reads so must not have a `branch`.
        """
        raise TypeError(f"a step that reads {name} other than by pages cannot be repeated")

    def paged(self, name: str, batch: SequenceBatch, group: Group) -> tuple[Tensor, Pages | None]:
        """Returns an entry's rows and where the group's keys lie."""
        return self.entries[name], group.pages(self.page_size)


@dataclass
class Step:
    """A recording and the places that it reads its inputs from; what it gives is computed anew by `again`."""

    inputs: tuple[Tensor, ...]
    rope: tuple[Tensor, Tensor]
    batch: SequenceBatch
    again: Callable[[], Tensor]

    def run(self, inputs: tuple[Tensor, ...], rope: tuple[Tensor, Tensor], batch: SequenceBatch) -> Tensor:
        """Returns the hidden states [T, D] of a step of the recorded shape."""
        (group,), (own,) = batch.plan.groups(), self.batch.plan.groups()
        assert group.pages_NP is not None and own.pages_NP is not None and self.batch.write_slots_T is not None
        with torch.inference_mode():  # else what was made in it could not be written to
            for place, value in zip((*self.inputs, *self.rope), (*inputs, *rope), strict=True):
                place.copy_(value)
            self.batch.write_slots_T.copy_(batch.write_slots_T)  # type: ignore[arg-type]
            own.cu_key.copy_(group.cu_key)
            own.pages_NP[:, : group.pages_NP.shape[1]] = group.pages_NP
        return self.again().clone()


Run = Callable[[tuple[Tensor, ...], SequenceBatch, "tuple[Tensor, Tensor]", list[InPages]], Tensor]
"""What is recorded: from inputs [T, D], the batch, its rotary tables and the layers' caches to hidden states [T, D]."""


@dataclass(frozen=True)
class Part:
    """A part of a model whose steps are recorded.

    Attributes:
        root: the module that holds it.
        blocks: its layers.
        layers: their caches.
        run: what a step does.
    """

    root: nn.Module
    blocks: Sequence[nn.Module]
    layers: Sequence[PagedLayerCache]
    run: Run


class RecordedSteps:
    """The recorded steps of a part of one model behind one cache."""

    def __init__(self, model: CausalLM, part: Part) -> None:
        self.model, self.part, self.layers = model, part, list(part.layers)
        self.steps: OrderedDict[Hashable, Step | None] = OrderedDict()
        self.seen: set[Hashable] = set()
        modules = list(part.root.modules())
        held = [values for m in modules for values in (m._parameters, m._buffers)]
        self.places = [(values, name) for values in held for name, x in values.items() if x is not None]
        self.hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        attentions = [block.self_attn for block in part.blocks]
        self.attentions = [attention for attention in attentions if isinstance(attention, Recordable)]
        self.recordable = len(self.attentions) == len(attentions)
        self.rows = self._rows()
        self.made_for = self._state()

    def _rows(self) -> int:
        """Returns how many tokens of a step all fused parts serve."""
        parts = (part for module in self.part.root.modules() for part in vars(module).values())
        return min((part.rows for part in parts if isinstance(part, Fused)), default=FEW_ROWS)

    def _state(self) -> tuple[Any, ...]:
        """What a recording depends on besides shapes: where weights and cache lie, which ops are bound."""
        weights = [place[name] for place, name in self.places]
        caches = [x for layer in self.layers for x in layer.entries.values()]
        tensors = [0 if x is None else x.data_ptr() for x in (*weights, *caches)]
        return self.model.bindings, torch.get_num_threads(), *tensors

    def hidden(self, inputs: tuple[Tensor, ...], rope: tuple[Tensor, Tensor], batch: SequenceBatch) -> Tensor | None:
        """Returns the hidden states [T, D] behind the part, or None where the step has to be run."""
        if not self.recordable or any(self.hooks):
            return None
        branches = [attention.branch(batch) for attention in self.attentions]
        if None in branches:
            return None
        if self._state() != self.made_for:
            self.steps.clear()
            self.seen.clear()
            self.made_for = self._state()
        (group,) = batch.plan.groups()
        assert group.pages_NP is not None
        width = 1 << (group.pages_NP.shape[1] - 1).bit_length()
        key = (tuple(batch.query_lengths()), width, *branches)
        if key not in self.seen:  # a shape that comes once is not worth it
            self.seen.add(key)
            return None
        if key not in self.steps:
            self.steps[key] = self._record(inputs, rope, batch, width)
            if len(self.steps) > STEPS:
                self.steps.popitem(last=False)
        self.steps.move_to_end(key)
        step = self.steps[key]
        if step is None:
            return None
        self._check_pages(group)
        return step.run(inputs, rope, batch)

    def _check_pages(self, group: Group) -> None:
        """Raises `ValueError` when the table names a page that the cache does not have: C would read elsewhere."""
        for layer in self.layers:
            rows = min(len(entry) for entry in layer.entries.values())
            if group.num_pages * layer.page_size > rows:
                raise ValueError(f"the page table names page {group.num_pages - 1}, the cache has {rows} rows")

    def _record(
        self, inputs: tuple[Tensor, ...], rope: tuple[Tensor, Tensor], batch: SequenceBatch, width: int
    ) -> Step | None:
        recorder = self.model.ops.recorder
        assert recorder is not None and batch.pages_NP is not None and batch.write_slots_T is not None
        pages_NP = batch.pages_NP.new_zeros(batch.num_segments, width)
        pages_NP[:, : batch.pages_NP.shape[1]] = batch.pages_NP
        own = SequenceBatch.build(
            batch.query_lengths(), batch.past_lengths, write_slots_T=batch.write_slots_T.clone(), pages_NP=pages_NP
        )
        own_inputs, own_rope = tuple(x_TD.clone() for x_TD in inputs), (rope[0].clone(), rope[1].clone())
        (group,) = own.plan.groups()
        own.num_tokens, own.page_runs, group.num_pages, group.key_lengths  # noqa: B018  what a step asks of lengths, asked beforehand
        caches = [InPages(layer.entries, layer.states, layer.page_size) for layer in self.layers]
        again = recorder.record(lambda: self.part.run(own_inputs, own, own_rope, caches))
        return None if again is None else Step(own_inputs, own_rope, own, again)


_OF_CACHE: WeakKeyDictionary[PagedCache, dict[str, RecordedSteps]] = WeakKeyDictionary()


def recorded_hidden(model: CausalLM, tokens_T: Tensor, batch: SequenceBatch, cache: PagedCache) -> Tensor | None:
    """Returns the hidden states [T, D] of a decoding step that is repeated; None where it has to be run."""

    def layers() -> Part:
        def run(inputs: tuple[Tensor, ...], *rest: Any) -> Tensor:
            return model.run_layers(inputs[0], *rest).hidden_TD

        return Part(model.model, list(model.model.layers), cache.layers, run)

    steps = _steps(model, batch, cache, "layers", layers)
    return None if steps is None else steps.hidden((model.embed(tokens_T),), model.rope(batch), batch)


def recorded_draft(
    model: CausalLM, next_tokens_T: Tensor, hidden_TD: Tensor, batch: SequenceBatch, cache: PagedCache
) -> Tensor | None:
    """The same of `CausalLM.mtp_draft`."""
    mtp, layer = model.mtp, cache.mtp
    assert mtp is not None and layer is not None

    def drafting() -> Part:
        def run(inputs: tuple[Tensor, ...], batch: SequenceBatch, rope: Any, caches: list[InPages]) -> Tensor:
            embedding_TD, hidden_TD = inputs
            return mtp.step(embedding_TD, hidden_TD, batch, rope, caches[0]).x_TD

        return Part(mtp, [mtp], [layer], run)

    steps = _steps(model, batch, cache, "draft", drafting)
    return None if steps is None else steps.hidden((model.embed(next_tokens_T), hidden_TD), model.rope(batch), batch)


def recorded_remember(
    model: CausalLM, next_tokens_T: Tensor, hidden_TD: Tensor, batch: SequenceBatch, cache: PagedCache
) -> Tensor | None:
    """The same of `CausalLM.mtp_remember`; what it returns says nothing but that it was repeated."""
    mtp, layer = model.mtp, cache.mtp
    assert mtp is not None and layer is not None

    def remembering() -> Part:
        def run(inputs: tuple[Tensor, ...], batch: SequenceBatch, rope: Any, caches: list[InPages]) -> Tensor:
            embedding_TD, hidden_TD = inputs
            mtp.remember(embedding_TD, hidden_TD, batch, rope, caches[0])
            return embedding_TD

        return Part(mtp, [mtp], [layer], run)

    steps = _steps(model, batch, cache, "remember", remembering)
    return None if steps is None else steps.hidden((model.embed(next_tokens_T), hidden_TD), model.rope(batch), batch)


def _steps(
    model: CausalLM, batch: SequenceBatch, cache: PagedCache, name: str, part: Callable[[], Part]
) -> RecordedSteps | None:
    """Returns the recorded steps of a part of a model; None where this step is not one to record."""
    decoding = batch.plan.only_decodes and not torch.is_grad_enabled() and not model.training
    if not decoding or model.ops.recorder is None:
        return None
    of_cache = _OF_CACHE.setdefault(cache, {})
    if name not in of_cache or of_cache[name].model is not model:
        of_cache[name] = RecordedSteps(model, part())
    return of_cache[name] if batch.num_tokens <= of_cache[name].rows else None

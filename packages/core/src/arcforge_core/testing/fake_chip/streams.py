"""Streams and events of the fake chip: work of a side stream runs as late as its waits allow.

A real chip runs such work some time, so code that forgets to wait is right on most days. Here it is always wrong. Work
on the default stream runs immediately, and waits for no other stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


class ChipStream:
    """A queue of work; the default stream's is always empty."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device(torch._C._get_privateuse1_backend_name(), 0)
        self.stream_id = len(STREAMS)
        self.waiting: list[Callable[[], Any]] = []
        self.done = 0
        STREAMS.append(self)

    @property
    def queued(self) -> int:
        """Pieces of work ever queued."""
        return self.done + len(self.waiting)

    def push(self, work: Callable[[], Any]) -> None:
        """Queues work; the default stream runs it."""
        self.waiting.append(work)
        if self.stream_id == 0:
            self.run_until(self.queued)

    def run_until(self, count: int) -> None:
        """Runs the first `count` pieces of work ever queued that have not run yet."""
        while self.done < count and self.waiting:
            work = self.waiting.pop(0)
            self.done += 1
            work()

    def query(self) -> bool:
        """Whether all of its work has run."""
        return not self.waiting

    def synchronize(self) -> None:
        """Returns when all of its work has run."""
        self.run_until(self.queued)

    def record_event(self, event: ChipEvent | None = None) -> ChipEvent:
        """Returns an event for the work queued so far."""
        event = event or ChipEvent()
        event.record(self)
        return event

    def wait_event(self, event: ChipEvent) -> None:
        """Runs later work after that of the event."""
        event.wait(self)

    def wait_stream(self, other: ChipStream) -> None:
        """Runs later work after that queued in another stream so far."""
        count = other.queued
        self.push(lambda: other.run_until(count))


class ChipEvent:
    """A point in a stream's work; before it is recorded there is nothing to wait for."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.timed, self.stamp = enable_timing, 0.0
        self.stream, self.count = STREAMS[0], 0

    def record(self, stream: ChipStream | None = None) -> None:
        """Takes the work queued so far in a stream, the current one by default."""
        self.stream = stream or current()
        self.stream.push(self._note)
        self.count = self.stream.queued

    def _note(self) -> None:
        self.stamp = time.perf_counter()

    def query(self) -> bool:
        """Whether its work has run."""
        return self.stream.done >= self.count

    def synchronize(self) -> None:
        """Returns when its work has run."""
        self.stream.run_until(self.count)

    def wait(self, stream: ChipStream | None = None) -> None:
        """Makes a stream, the current one by default, wait for its work."""
        awaited, count = self.stream, self.count
        (stream or current()).push(lambda: awaited.run_until(count))

    def elapsed_time(self, end: ChipEvent) -> float:
        """Returns milliseconds to another event whose work has run."""
        if not (self.timed and end.timed and self.query() and end.query()):
            raise RuntimeError("both events need enable_timing and must have happened")
        return 1e3 * (end.stamp - self.stamp)


STREAMS: list[ChipStream] = []
"""All streams of this process, the default one first."""
ChipStream()
_CURRENT = [STREAMS[0]]


def current() -> ChipStream:
    """Returns the stream that work is queued in."""
    return _CURRENT[0]


@contextmanager
def entered(stream: ChipStream) -> Iterator[None]:
    """Queues work in a stream."""
    before, _CURRENT[0] = _CURRENT[0], stream
    try:
        yield
    finally:
        _CURRENT[0] = before


def launch(
    function: Callable[..., Any], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], now: bool = False
) -> Any:
    """Runs an operator on host tensors, or queues it in the current stream and returns tensors that it will fill.

    An operator whose result the host must know, such as a number or a shape, waits for the stream first, and so does
    one that the caller needs `now`.
    """
    stream, schema = current(), op._schema
    if stream.stream_id == 0:
        return function(*args, **kwargs)
    if now:
        stream.synchronize()
    if now or any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):  # or a view
        return function(*args, **kwargs)
    inference = torch.is_inference_mode_enabled()

    def work(*into: Tensor) -> None:
        with torch.inference_mode(inference):
            found = function(*args, **kwargs)
            for target, value in zip(into, tree_leaves(found), strict=bool(into)):
                target.copy_(value)

    if schema.is_mutable:
        names = [argument.name for argument in schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        stream.push(work)
        return given[next(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)]
    shapes = None if torch.Tag.nondeterministic_seeded in op.tags else _shapes(op, args, kwargs)
    if shapes is None:
        stream.synchronize()
        return function(*args, **kwargs)
    outs = tree_map(_unknown, shapes)
    stream.push(lambda: work(*tree_leaves(outs)))
    return outs


def _shapes(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the results as tensors without values; None if they depend on values, or are no tensors."""

    def bare(x: Any) -> Any:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x

    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        found = op(*tree_map(bare, args), **tree_map(bare, kwargs))
    except (NotImplementedError, RuntimeError):
        return None
    return found if all(isinstance(x, Tensor) for x in tree_leaves(found)) else None


def _unknown(shape: Tensor) -> Tensor:
    """Returns a tensor of values that no program wants."""
    out = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
    return out.fill_(float("nan")) if out.is_floating_point() else out.zero_()

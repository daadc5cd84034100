"""Faults of the fake chip's streams by name, for `arcforge_core.testing.fake_chip.faults.injected`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from arcforge_core.testing.fake_chip import streams
from arcforge_core.testing.fake_chip.streams import ChipEvent, ChipStream


def _nothing(*_: Any) -> None:
    return None


@contextmanager
def _not_entered(stream: ChipStream) -> Iterator[None]:
    yield


@contextmanager
def _not_left(stream: ChipStream) -> Iterator[None]:
    streams._CURRENT[0] = stream
    yield


def _first_place(event: ChipEvent, stream: ChipStream | None = None) -> None:
    if not event.stamp and event.count == 0:
        _RECORD(event, stream)


def _last_first(stream: ChipStream, work: Callable[[], Any]) -> None:
    if stream.stream_id == 0:
        _PUSH(stream, work)
    else:
        stream.waiting.insert(0, work)


_RECORD, _PUSH = ChipEvent.record, ChipStream.push
STREAM_FAULTS: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "a stream is not entered": (streams, "entered", _not_entered),
    "a stream is not left": (streams, "entered", _not_left),
    "streams wait for no event": (ChipStream, "wait_event", _nothing),
    "streams wait for no stream": (ChipStream, "wait_stream", _nothing),
    "every event is complete": (ChipEvent, "query", lambda _: True),
    "the host waits for no event": (ChipEvent, "synchronize", _nothing),
    "the host waits for no stream": (ChipStream, "synchronize", _nothing),
    "a stream runs its last work first": (ChipStream, "push", _last_first),
    "an event keeps its first place": (ChipEvent, "record", _first_place),
    "events are at the same time": (ChipEvent, "elapsed_time", lambda *_: 0.0),
}
"""Name to an attribute and its replacement."""

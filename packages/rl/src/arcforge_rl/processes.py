"""Processes that share the work of a step: each samples and learns from its part, and all know everything.

They exchange rollouts and streams, so that scoring, curricula and figures are those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.contracts.algorithm import Trace
from arcforge_core.train.processes import part, place, whole


def share_stream(traces: Sequence[Trace], name: str) -> None:
    """Gives all processes a stream that each has written into its part of the same traces, where it is there."""
    if place()[1] == 1:
        return
    streams = whole([[branch.streams.get(name) for branch in trace.branches] for trace in part(traces)])
    for trace, of_trace in zip(traces, streams, strict=True):
        for branch, stream in zip(trace.branches, of_trace, strict=True):
            if stream is not None:
                branch.streams[name] = stream

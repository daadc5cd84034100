"""Queued runs survive a kill of the service: none is lost, none has two results."""

from __future__ import annotations

import sys

import pytest


@pytest.mark.slow(reason="starts the service twice")
@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_no_run_is_lost_or_doubled() -> None:
    from execution import queued_runs

    found = queued_runs(jobs=30, kills=1, work=10, concurrency=2)
    assert found["lost"] == found["doubled"] == found["unfinished"] == 0 and found["right"] == 30
    assert found["started_again"] <= 2 and 0 < found["busy_with_restarts"] <= 1


@pytest.mark.nightly(reason="opens worlds of hundreds of files")
@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_prepared_worlds_open() -> None:
    import asyncio

    from execution import worlds

    found = asyncio.run(worlds(3))
    assert found["worlds"] == 3 and found["open_p50_ms"] > 0 and found["idle_mib"] < 512

"""Weights that are replaced while requests run, and the pauses for it."""

import threading
import time
from dataclasses import replace

import pytest

from arcforge_core import save_pretrained
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.testing.small_models import small_model
from support.paged_engines import GREEDY, assert_of_the_model, paged, run, simple

LONG = [n % 61 for n in range(40)]


def test_kept_requests_go_on_with_new_weights_and_nobody_finds_their_entries():
    model = small_model()
    engine = paged(model, overlap=False)
    (kept,) = engine.submit(LONG, replace(GREEDY, max_new_tokens=20))
    for _ in range(4):
        engine.step()
    engine.pause("keep")
    assert engine.step() is False
    state = {name: value * 1.25 if "norm" in name else value for name, value in model.state_dict().items()}
    engine.update_weights(state, version=5)
    (waits,) = engine.submit(LONG, GREEDY)
    assert engine.step() is False
    time.sleep(0.05)
    engine.resume()
    run(engine)
    output = kept.result(0)
    assert output.weight_versions == [(0, 4), (5, 16)]
    assert (output.weight_version, output.oldest_version, output.finish_reason) == (5, 0, "length")
    assert waits.result(0).queue_seconds >= 0.05
    assert waits.result(0).cached_tokens == 0
    assert_of_the_model(model, LONG, waits.result(0))
    again = [*LONG, *output.token_ids, 1]  # its own pages, old and new entries mixed
    (after,) = engine.generate([again], GREEDY)
    assert after.cached_tokens <= len(LONG) + 8  # those of the request that waited
    assert_of_the_model(model, again, after)
    engine.check()


@pytest.mark.parametrize("started", [True, False])
def test_pausing_ends_or_finishes_what_runs(started):
    engine = paged(max_running=1)
    if started:
        engine.start()
    for mode, reasons in (("wait", {"length"}), ("abort", {"abort", "length"})):
        streams = [engine.submit(LONG, GREEDY)[0] for _ in range(3)]
        engine.pause(mode)
        assert {stream.result(0).finish_reason for stream in streams} <= reasons
        assert (engine.stats().running, engine.stats().paused) == (0, True)
        (later,) = engine.submit([1], GREEDY)
        time.sleep(0.02)
        assert not later.done
        engine.resume()
        if not started:
            run(engine)
        assert later.result(60).finish_reason == "length"
    with pytest.raises(ConfigError, match="mode='now'"):
        engine.pause("now")
    engine.close()


def slowly(engine, monkeypatch, seconds=0.02):
    original = engine.model.embed

    def slow(*args):
        time.sleep(seconds)
        return original(*args)

    monkeypatch.setattr(engine.model, "embed", slow)


def start_waiting(engine, monkeypatch):
    """Has a thread wait for a pause, which the engine has begun."""
    begun, pause = threading.Event(), engine._pause
    monkeypatch.setattr(engine, "_pause", lambda mode: (begun.set(), pause(mode)))
    waiting = threading.Thread(target=engine.pause, args=("wait",))
    waiting.start()
    assert begun.wait(60)
    return waiting


@pytest.mark.parametrize("end", ["cancel", "abort"])
def test_what_a_pause_waits_for_can_be_ended(monkeypatch, end):
    engine = paged(max_running=2)
    slowly(engine, monkeypatch)
    engine.start()
    streams = [engine.submit(LONG, replace(GREEDY, max_new_tokens=80))[0] for _ in range(3)]
    waiting = start_waiting(engine, monkeypatch)
    (late,) = engine.submit([5], GREEDY)
    (dropped,) = engine.submit([6], GREEDY)
    dropped.cancel()  # it is not even in the queue yet
    assert dropped.result(60).finish_reason == "abort"
    assert waiting.is_alive() and not streams[0].done
    if end == "abort":
        engine.abort()
    else:
        for stream in streams:
            stream.cancel()
    assert [stream.result(60).finish_reason for stream in streams] == ["abort"] * 3
    assert all(len(stream.result().token_ids) < 80 for stream in streams)
    waiting.join(60)
    assert not waiting.is_alive() and engine.paused
    assert late.done is (end == "abort")
    engine.resume()
    assert late.result(60).finish_reason == ("abort" if end == "abort" else "length")
    engine.flush()
    stats = engine.stats()  # what was cancelled before it came is not among them either
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
    engine.check()
    engine.close()


def test_closing_does_not_wait_for_what_a_pause_waits_for(monkeypatch):
    engine = paged()
    slowly(engine, monkeypatch)
    engine.start()
    (stream,) = engine.submit(LONG, replace(GREEDY, max_new_tokens=80))
    waiting = start_waiting(engine, monkeypatch)
    engine.close()
    waiting.join(60)
    assert stream.result(60).finish_reason == "abort"
    assert len(stream.result().token_ids) < 80


def test_a_prompt_that_is_half_computed_at_an_update_is_computed_again():
    """Its first token depends on the new weights alone, and so do all that follow."""
    engine, new = paged(max_batch_tokens=8, max_running=4), small_model(seed=5)
    (stream,) = engine.submit(LONG, GREEDY)
    assert engine.step() and engine.step()
    assert 0 < engine.scheduler.running[0].cached < len(LONG)
    engine.update_weights(new.state_dict())
    run(engine)
    output = stream.result()
    assert output.weight_versions == [(1, 8)]
    assert_of_the_model(new, LONG, output)


def test_a_refused_update_does_not_stop_the_engine(monkeypatch):
    """It is looked at while others are served; only copies are made between two steps."""
    engine = paged()
    engine.start()
    engine.pause("keep")
    controls = []
    monkeypatch.setattr(engine.loop, "between_steps", lambda action: controls.append(action))
    state = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    with pytest.raises(CheckpointError, match="checksum"):
        engine.update_weights(state, checksum="0" * 64)
    with pytest.raises(ConfigError, match="version=0"):
        engine.update_weights(state, version=0)
    assert not controls
    engine.update_weights(state)
    assert len(controls) == 1
    monkeypatch.undo()
    engine.close()


def test_all_requests_can_be_aborted():
    engine = paged(max_running=1)
    streams = [engine.submit(LONG, GREEDY)[0] for _ in range(3)]
    engine.step()
    engine.abort()
    assert {stream.result(0).finish_reason for stream in streams} == {"abort"}
    assert engine.stats().waiting == engine.stats().running == 0


def test_a_paused_engine_that_nobody_drives_does_not_generate():
    engine = paged()
    engine.pause()
    with pytest.raises(ConfigError, match="resume"):
        engine.generate([[1]], GREEDY)


def test_weights_come_from_a_folder(tmp_path):
    model = small_model()
    engine = paged(model)
    donor = small_model(seed=1)
    save_pretrained(donor, tmp_path / "new")
    save_pretrained(small_model(hidden_size=24), tmp_path / "other")
    with pytest.raises(CheckpointError, match="other sizes"):
        engine.update_weights_from(tmp_path / "other")
    engine.update_weights_from(tmp_path / "new", version=3)
    assert engine.weight_version == 3
    assert engine.generate([LONG], GREEDY)[0].token_ids == simple(donor, LONG).token_ids

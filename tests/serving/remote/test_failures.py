"""Servers that are not there, turn away, fail, hang, and hang up; what may have been done is not asked for twice."""

import json
import socket
import threading

import pytest
from fastapi.responses import JSONResponse, Response

from arcforge_core.contracts.engine import SamplingParams, UnfinishedUpdateError
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.testing.serving_engine_suite import until
from arcforge_core.testing.small_models import small_model
from arcforge_serving.configs import SglangEngineConfig, VllmEngineConfig
from arcforge_serving.engine.errors import RemoteError, RemoteTimeoutError, TurnedAwayError
from arcforge_serving.remote.sglang import SglangEngine
from arcforge_serving.remote.vllm import VllmEngine
from serving.remote.conftest import KINDS
from support.clocks import MovedClock
from support.remote_servers import FakeSglang, serving

PARAMS = SamplingParams(max_new_tokens=3, temperature=0.0)
GENERATE = {"vllm": "/inference/v1/generate", "sglang": "/generate"}


def generations(kind, fake):
    return [json.loads(body) for path, body in fake.calls if path == GENERATE[kind]]


def error(status, message="no"):
    return JSONResponse({"error": {"message": message, "param": None}}, status)


@pytest.mark.parametrize("status", [429, 503])
def test_requests_that_are_turned_away_are_sent_again(kind, fake, engine, status):
    wanted = engine.generate([[1, 2]], PARAMS)
    fake.faults.extend([error(status), error(status)])
    assert engine.generate([[1, 2]], PARAMS) == wanted
    assert len(generations(kind, fake)) == 4


def test_not_for_ever(kind, fake, make):
    engine = make(retries=1)
    fake.faults.extend([error(503, "full")] * 2)
    with pytest.raises(RemoteError, match="503: full"):
        engine.generate([[1, 2]], PARAMS)
    assert len(generations(kind, fake)) == 2


@pytest.mark.parametrize(
    ("fault", "wanted", "said"),
    [
        (error(400, "too long"), ConfigError, "too long"),
        (JSONResponse({"error": {"message": "bad", "param": "top_k"}}, 400), ConfigError, "^top_k="),
        (JSONResponse({"detail": "not this"}, 422), ConfigError, "not this"),
        (Response("<html>", 404), ConfigError, "there is no /"),
        (error(401, "key"), ConfigError, "ARCFORGE_ENGINE_KEY"),
        (error(403, "Scale-out endpoints are disabled"), ConfigError, "Scale-out endpoints are disabled"),
        (error(500, "engine died"), RemoteError, "500: engine died"),
        (Response("bad gateway", 502), RemoteError, "502: bad gateway"),
        (Response("nonsense", 200), RemoteError, "not answer with JSON"),
    ],
)
def test_other_failures_are_told_once(kind, fake, engine, fault, wanted, said):
    fake.faults.append(fault)
    with pytest.raises(wanted, match=said):
        engine.generate([[1, 2]], PARAMS)
    assert len(generations(kind, fake)) == 1


def test_one_failure_is_that_of_one_sequence(kind, fake, engine):
    wanted = engine.generate([[2]], PARAMS)[0]
    fake.faults.append(error(500, "engine died"))
    with pytest.raises(RemoteError, match="500: engine died"):
        engine.submit([1], PARAMS)[0].result(60)
    fake.faults.append(error(500, "engine died"))
    streams = [engine.submit([2], PARAMS)[0] for _ in range(3)]
    outcomes = [outcome(stream) for stream in streams]
    assert sorted(type(each).__name__ for each in outcomes) == ["GenerationOutput", "GenerationOutput", "RemoteError"]
    assert {str(each.token_ids) for each in outcomes if not isinstance(each, Exception)} == {str(wanted.token_ids)}
    assert not [path for path, _ in fake.calls if "abort" in path]


def test_a_call_raises_the_first_error_when_all_have_ended(kind, fake, engine):
    fake.faults.append(error(500))
    with pytest.raises(RemoteError):
        engine.generate([[1], [2], [3]], PARAMS)
    assert len(generations(kind, fake)) == 3
    assert not fake.engine.stats().running


def test_errors_have_types(kind, fake, make):
    engine = make(retries=0)
    fake.faults.append(error(503, "full"))
    assert isinstance(outcome(engine.submit([1], PARAMS)[0]), TurnedAwayError)
    fake.faults.append(error(400, "too long"))
    assert isinstance(outcome(engine.submit([1], PARAMS)[0]), ConfigError)


def test_a_server_that_has_gone_turns_away(kind, fake, model, tmp_path):
    _, engine, config, usual = KINDS[kind]
    with serving(fake) as address:
        remote = engine(config(url=address, retries=0, **usual), model)
    assert not remote.alive
    found = outcome(remote.submit([1], PARAMS)[0])
    assert isinstance(found, TurnedAwayError) and "cannot be reached" in str(found)
    remote.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_sequence_that_takes_too_long_is_ended_there(kind, fake, make, stream):
    engine = make(timeout_seconds=600, stream=stream)
    clock = MovedClock(engine._client.loop)
    fake.engine.pause()
    late = engine.submit([1], PARAMS)[0]
    until(lambda: fake.engine.stats().waiting == 1)
    clock.move(601)
    found = outcome(late)
    assert isinstance(found, RemoteTimeoutError) and "engine.timeout_seconds=600" in str(found)
    fake.engine.resume()
    assert engine.submit([1], PARAMS)[0].result(60).finish_reason == "length"
    until(lambda: fake.engine.stats().running + fake.engine.stats().waiting == 0)


def test_a_stream_that_breaks_off_is_an_error(kind, fake, engine):
    for body in (b"data: {", b"data: nonsense\n\n", b'data: {"error": {"message": "died", "param": "top_p"}}\n\n'):
        fake.faults.append(Response(body, media_type="text/event-stream"))
        assert isinstance(outcome(engine.submit([1], PARAMS)[0]), RemoteError)


def test_what_submit_was_given_arrives(kind, fake, engine):
    engine.submit([1], PARAMS, priority=2, salt="team", session="rollout 7")[0].result(60)
    (body,) = generations(kind, fake)
    header = {"vllm": "x-session-id", "sglang": "x-smg-routing-key"}[kind]
    assert fake.headers[-1][header] == "rollout 7"
    assert body["cache_salt" if kind == "vllm" else "extra_key"] == "team"
    assert body["priority"] == (-2 if kind == "vllm" else 2)
    with pytest.raises(ConfigError, match=f"owner='me': engine={kind} does not know it"):
        engine.submit([1], PARAMS, owner="me")


def test_no_more_than_so_many_requests_at_a_time(kind, fake, make):
    engine = make(concurrency=2)
    fake.engine.pause()
    streams = [engine.submit([1, n], PARAMS)[0] for n in range(5)]
    until(lambda: fake.engine.stats().waiting == 2)
    assert len(generations(kind, fake)) == 2
    fake.engine.resume()
    assert [stream.result(60).finish_reason for stream in streams] == ["length"] * 5


def test_figures_of_the_server(kind, fake, engine):
    engine.submit([1, 2], PARAMS)[0].result(60)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.weight_version, stats.paused) == (0, 0, 0, False)
    if kind == "vllm":
        assert (stats.pages, stats.page_size, stats.prefix_reuse) == (256, 16, "on")
        assert (stats.prompt_tokens, stats.generated_tokens) == (2, 3)
        assert stats.free_pages == fake.engine.stats().free_pages
    else:
        assert (stats.pages, stats.free_pages, stats.page_size) == (4096, 4096, 1)


def test_incremental_streams_of_sglang(model, tmp_path):
    fake = FakeSglang(model)
    fake.info["incremental_streaming_output"] = True
    with serving(fake) as address:
        engine = SglangEngine(SglangEngineConfig(url=address), model)
        params = SamplingParams(max_new_tokens=20, temperature=0.0, top_logprobs=2)
        found, wanted = engine.submit([1, 2], params)[0].result(60), fake.engine.generate([[1, 2]], params)[0]
        assert (found.token_ids, len(found.top_logprobs)) == (wanted.token_ids, 20)
        engine.close()


def outcome(stream):
    """The output of a stream, or its error."""
    try:
        return stream.result(60)
    except Exception as error:
        return error


class Listener:
    """Accepts connections, counts requests, and does with each what a function says."""

    def __init__(self, treat):
        self.requests, self._treat = 0, treat
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            request = connection.recv(65536)
            if request.startswith(b"GET"):
                body = b'{"weight_version": "a"}'
                head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
                connection.sendall(head + body)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)  # until the client has closed: a reset would take the answer with it
            elif b"generate" in request:
                self.requests += 1
                self._treat(connection)

    def close(self):
        self._socket.close()


def silent(connection):
    """Answers nothing until the client has gone away; a request may come in several parts."""
    while connection.recv(65536):
        pass


@pytest.mark.parametrize(
    ("treat", "said", "seconds"),
    [
        (lambda connection: None, "hung up in the middle", 60),
        (lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"), "hung up", 60),
        (silent, r"took longer than engine\.timeout_seconds=1\.5", 1.5),
    ],
)
def test_what_may_have_begun_is_not_sent_again(treat, said, seconds):
    listener = Listener(treat)
    engine = VllmEngine(VllmEngineConfig(url=listener.url, timeout_seconds=seconds), small_model())
    with pytest.raises(RemoteError, match=said):
        engine.generate([[1, 2]], PARAMS)
    assert listener.requests == 1
    listener.close()
    engine.close()


def test_no_server():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"engine\.url='http://127\.0\.0\.1:{port}': cannot be reached"):
        VllmEngine(VllmEngineConfig(url=f"http://127.0.0.1:{port}", retries=0), small_model())


def test_the_key_is_sent(kind, make, fake, monkeypatch):
    monkeypatch.setenv("ARCFORGE_ENGINE_KEY", "secret-key")
    assert make()._client._http.headers["authorization"] == "Bearer secret-key"


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_updates_go_through_a_folder_one_at_a_time(kind, fake, engine, model, tmp_path):
    engine.update_weights(model.state_dict(), version=3)
    assert [p.name for p in tmp_path.iterdir()] == ["version-3"]
    assert fake.label == "3"
    engine.update_weights(model.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == ["version-4"]
    order = [path for path, _ in fake.calls]
    steps = {
        "vllm": ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"],
        "sglang": ["/pause_generation", "/update_weights_from_disk", "/continue_generation"],
    }[kind]
    assert order == 2 * steps


def test_an_engine_that_is_made_later_knows_the_version(engine, make, model):
    engine.update_weights(model.state_dict(), version=5)
    assert make().weight_version == 5


def test_a_server_that_fails_at_an_update_goes_on(kind, fake, engine, model):
    fake.faults.extend([None, error(500, "out of memory")])
    with pytest.raises(CheckpointError, match=r"weight update 1: .*out of memory"):
        engine.update_weights(model.state_dict())
    assert fake.calls[-1][0] in ("/resume", "/continue_generation")
    assert engine.weight_version == 0
    assert engine.generate([[1, 2]], PARAMS)[0].weight_version == 0


def test_an_update_that_hangs_has_a_limit(kind, fake, make, model, monkeypatch):
    engine, load, free = make(update_seconds=600), fake.load, threading.Event()
    clock = MovedClock(engine._client.loop)

    def hangs(folder):
        clock.move(601)
        free.wait(60)
        load(folder)

    monkeypatch.setattr(fake, "load", hangs)
    with pytest.raises(UnfinishedUpdateError, match=r"weight update 1: .*longer than engine\.update_seconds=600"):
        engine.update_weights(model.state_dict())
    free.set()
    later = make()
    later.update_weights(model.state_dict(), version=7)
    assert later.weight_version == 7 and fake.label == "7"


def test_a_cache_that_keeps_old_entries_is_a_failure(kind, fake, engine, model):
    if kind == "vllm":
        fake.faults.extend([None, None, JSONResponse({"success": False})])
        with pytest.raises(CheckpointError, match="old weights"):
            engine.update_weights(model.state_dict())


@pytest.mark.parametrize("folder", [None, "/none/such"])
def test_updates_need_a_folder(make, fake, model, folder):
    with pytest.raises(ConfigError, match=r"engine\.weights_dir"):
        make(weights_dir=folder).update_weights(model.state_dict())
    assert fake.calls == []


@pytest.mark.parametrize(
    ("config", "changes", "field"),
    [
        (VllmEngineConfig, {"url": "gpu:8000"}, "engine.url"),
        (VllmEngineConfig, {"pause": "retract"}, "engine.pause"),
        (SglangEngineConfig, {"pause": "keep"}, "engine.pause"),
        (VllmEngineConfig, {"retries": -1}, "engine.retries"),
        (VllmEngineConfig, {"concurrency": 0}, "engine.concurrency"),
        (SglangEngineConfig, {"timeout_seconds": 0.0}, "engine.timeout_seconds"),
        (SglangEngineConfig, {"update_seconds": 0.0}, "engine.update_seconds"),
    ],
)
def test_options_are_checked(config, changes, field):
    with pytest.raises(ConfigError, match=field):
        config(**changes)

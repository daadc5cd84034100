"""Keys share a server: places, the queue, priorities and cached prefixes."""

import threading
from contextlib import contextmanager

import httpx
import pytest

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS
from arcforge_serving.server.gate.guard import Guard
from support.servers import client_of, listening, small_state

KEYS = {USER_KEYS: "first-key,second-key", ADMIN_KEYS: "admin-key"}
FIRST, SECOND, ADMIN = ({"Authorization": f"Bearer {name}-key"} for name in ("first", "second", "admin"))
LONG = [7] * 100


def keyed(tokenizer, options=None, **engine):
    config = ServeConfig(PagedEngineConfig(), **(options or {}))
    state = small_state(tokenizer, **engine)
    state.guard, state.share_prefixes = Guard.of(config, KEYS), config.share_prefixes
    return state


def ask(client, headers, **fields):
    return client.post("/v1/completions", json={"prompt": LONG, "max_tokens": 1, **fields}, headers=headers)


def cached(client, headers):
    return ask(client, headers).json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("shared", [False, True])
def test_only_keys_that_share_find_each_others_prompts(tokenizer, shared):
    with client_of(keyed(tokenizer, {"share_prefixes": shared})) as client:
        assert cached(client, FIRST) == 0
        assert cached(client, FIRST) == 96
        assert cached(client, SECOND) == (96 if shared else 0)
        assert cached(client, ADMIN) == (96 if shared else 0)
        assert cached(client, SECOND) == 96


@pytest.mark.parametrize(("options", "headers", "priority", "status"), [
    ({}, FIRST, 1, 400), ({}, FIRST, 0, 200), ({}, FIRST, -100, 200), ({}, ADMIN, 100, 200),
    ({"max_priority": 5}, FIRST, 5, 200), ({"max_priority": 5}, FIRST, 6, 400),
])  # fmt: skip
def test_priorities_are_bounded_by_key(tokenizer, options, headers, priority, status):
    with client_of(keyed(tokenizer, options)) as client:
        reply = ask(client, headers, priority=priority)
        assert reply.status_code == status
        assert status == 200 or "max_priority" in reply.json()["error"]["message"]


@contextmanager
def flood(state, address):
    """Seven requests of 128 sequences each, which fill the queue; they end with the context."""
    body = {"prompt": [1, 2, 3], "n": 128, "max_tokens": 900, "ignore_eos": True, "stream": True}
    clients = [httpx.Client(base_url=address, headers=FIRST, timeout=60) for _ in range(7)]
    statuses = []

    def send(client):
        with client.stream("POST", "/v1/completions", json=body) as reply:
            statuses.append(reply.status_code)
            stop.wait()

    stop = threading.Event()
    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        while len(statuses) < 7:
            assert threads[0].is_alive()
            stop.wait(0.01)
        yield statuses
    finally:
        stop.set()
        for thread, client in zip(threads, clients, strict=True):
            thread.join()
            client.close()


def test_whoever_fills_places_and_queue_leaves_a_neighbour_its_share(tokenizer):
    state = keyed(tokenizer, max_running=8, max_waiting=888)
    with listening(state) as (_, address), flood(state, address) as statuses:
        assert statuses == [200] * 7
        stats = state.engine.stats()
        assert stats.running + stats.waiting >= 888
        for n in (1, 4):
            reply = httpx.post(
                f"{address}/v1/completions", json={"prompt": LONG, "max_tokens": 3, "n": n}, headers=SECOND, timeout=60
            )
            assert reply.status_code == 200, reply.text
        assert state.engine.stats().waiting > 500  # it has waited for none of them
        assert httpx.post(
            f"{address}/v1/completions", json={"prompt": [LONG, LONG], "n": 128}, headers=FIRST, timeout=60
        ).status_code == 503  # fmt: skip

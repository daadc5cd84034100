"""The server: seeded requests to every endpoint that generates, one after the other."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from compare.policy import Case, Inputs
from compare.requests import KINDS, Request
from compare.streams import events, joined
from compare.trees import ONE_THREAD, Tree, UserError

DROPPED = (
    *("id", "call_id", "item_id", "response_id", "previous_response_id", "created", "created_at", "completed_at"),
    *("sequence_number", "weight_versions"),
)
"""Fields that are never the same twice; the last two count pieces of a stream."""


def server(inputs: Inputs, tree: Tree, folder: Path) -> Iterator[Case]:
    """The replies to each kind of request."""
    with serving(tree, inputs.model) as port:
        for kind, requests in KINDS.items():
            yield f"{len(requests)} {kind}", partial(ask_all, port, requests)


@contextmanager
def serving(tree: Tree, checkpoint: Path) -> Iterator[int]:
    """Yields the port of a server of the checkpoint.

    Raises:
        UserError: it does not start; with its last lines.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [f"checkpoint={checkpoint}", f"port={port}", "served_name=tiny", "hardware=cpu"]
    settings += ["engine=paged", "engine.overlap=false", "engine.cache_tokens=8192"]
    with tempfile.TemporaryFile() as log:
        command = tree.command("arcforge-serve", *settings)
        variables = {**tree.variables, **ONE_THREAD}
        process = subprocess.Popen(command, env=variables, cwd=tree.folder, stdout=log, stderr=log)
        try:
            ends = time.monotonic() + 120
            while not is_ready(port):
                if process.poll() is not None or time.monotonic() > ends:
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip().splitlines()
                    raise UserError("\n".join([f"{tree.name}: the server did not start:", *said[-15:]]))
                time.sleep(0.2)
            yield port
        finally:
            process.kill()
            process.wait()


def is_ready(port: int) -> bool:
    """Whether the server takes requests."""
    try:
        return post(port, "/tokenize", {"prompt": "1"})[0] == 200
    except OSError:
        return False


def post(port: int, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Returns the status and the body of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def ask_all(port: int, requests: list[Request]) -> list[Any]:
    """Returns what remains of each reply without ids and times.

    A request with ``previous_response_id`` continues from the reply before it.

    Raises:
        UserError: a request is refused.
    """
    found, last = [], None
    for path, body in requests:
        given = {**body, "previous_response_id": last} if "previous_response_id" in body else body
        status, text = post(port, path, given)
        if status != 200:
            raise UserError(f"{path} answers {status}: {text[:300]} to {json.dumps(given)}")
        values = events(text) if body.get("stream") else [json.loads(text)]
        last = values[-1].get("response", values[-1]).get("id")
        found.append(joined(comparable(values)))
    return found


def comparable(value: Any) -> Any:
    """Returns a value without the fields that are never the same twice."""
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items() if key not in DROPPED}
    return [comparable(inner) for inner in value] if isinstance(value, list) else value

"""A small HTTP server whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """Reads the body of a request and sends an answer; prints nothing."""

    def body(self) -> dict[str, Any]:
        """Returns the request's JSON."""
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, status: int, content: bytes | Mapping[str, Any], part: float = 1.0) -> None:
        """Sends an answer, or the beginning of one whose length is that of the whole."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: int(len(data) * part)])

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def listening(post: Callable[[JsonHandler], None], port: int = 0) -> Iterator[str]:
    """Runs a server that hands each POST to `post`, on a thread; yields its address. Port 0 is any free one."""

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            post(self)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

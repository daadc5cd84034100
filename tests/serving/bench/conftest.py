"""A small OpenAI server whose answers a test decides, chunk by chunk."""

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Answer:
    """What the server does with a request.

    Attributes:
        texts: a chunk each; a dictionary is sent as it is, a string that begins with ``raw:`` as the bytes after it.
        usage: in the last chunk, where the request asks for it; None sends none.
        delay: seconds before each chunk.
        finish: the finish reason, None for a stream that ends without one.
        done: whether ``[DONE]`` is sent.
        breaks: whether the connection is closed in the middle.
        status: of an error, whose message is `texts[0]`.
    """

    texts: list = field(default_factory=lambda: ["a", " b", " c"])
    usage: dict | None = field(default_factory=lambda: {"prompt_tokens": 7, "completion_tokens": 3})
    delay: float = 0.0
    finish: str | None = "stop"
    done: bool = True
    breaks: bool = False
    status: int = 200


class FakeServer(ThreadingHTTPServer):
    """Notes bodies, keys and how many requests it had at a time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, reply, models=("fake",), key=None):
        self.reply, self.models, self.key = reply, models, key
        self.bodies, self.paths, self.most, self.busy, self.lock = [], [], 0, 0, threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that has gone

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def measured(self):
        """Bodies of all requests but the first one, by which a client looks whether it is answered."""
        return self.bodies[1:]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.server.models is None:
            self.json(404, {"error": {"message": "no such route"}})
        elif not self.refused():
            self.json(200, {"object": "list", "data": [{"id": name} for name in self.server.models]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.paths.append(self.path)
            server.busy += 1
            self.inside = 1
            server.most = max(server.most, server.busy)
        try:
            if not self.refused():
                self.answer(server.reply(body), body)
        finally:
            self.left()

    def left(self):
        """Counts the request as over, before its end is sent: the next one may come before this thread continues."""
        with self.server.lock:
            self.server.busy -= self.inside
            self.inside = 0

    def refused(self):
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.json(401, {"error": {"message": "invalid key"}})
            return True
        return False

    def answer(self, answer, body):
        if answer.status != 200:
            self.json(answer.status, {"error": {"message": answer.texts[0]}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chat = self.path.endswith("chat/completions")
        with suppress(BrokenPipeError, ConnectionResetError):
            if chat:
                self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            for text in answer.texts:
                time.sleep(answer.delay)
                if isinstance(text, dict):
                    self.event(text)
                elif text.startswith("raw:"):
                    self.chunk(text.removeprefix("raw:"))
                else:
                    said = {"delta": {"content": text}} if chat else {"text": text}
                    self.event({"choices": [{"index": 0, **said, "finish_reason": None}]})
            if answer.breaks:
                self.close_connection = True
                self.connection.shutdown(2)
                return
            if answer.finish:
                said = {"delta": {}} if chat else {"text": ""}
                self.event({"choices": [{"index": 0, **said, "finish_reason": answer.finish}]})
            if answer.usage and body.get("stream_options", {}).get("include_usage"):
                self.event({"choices": [], "usage": answer.usage})
            self.left()
            if answer.done:
                self.chunk("data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

    def event(self, event):
        self.chunk(f"data: {json.dumps(event)}\n\n")

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def json(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve():
    """``serve(reply, ...)`` starts a server whose `reply` makes an `Answer` of a request's body."""
    servers = []

    def start(reply=lambda body: Answer(), **options):
        servers.append(FakeServer(reply, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def answer():
    """`Answer`, which test modules cannot import from here."""
    return Answer

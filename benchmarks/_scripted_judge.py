"""A judge that is a program on a server of its own: ``python benchmarks/_scripted_judge.py LATENCY ERRORS``.

It prints its address. Each answer takes LATENCY seconds; a share ERRORS of the requests gets HTTP 500 after that time.
Of two candidates the longer one is better, of one the length decides its choice.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def quotations(text: str) -> list[str]:
    """Returns what the question quotes: the prompt, then the candidates."""
    lines = text.splitlines()
    return [json.loads(line.removeprefix("QUOTED ")) for line in lines if line.startswith("QUOTED ")]


def verdict(body: dict[str, Any]) -> str:
    """Returns the verdict on the candidates of a request, as its schema asks for it."""
    properties = body["response_format"]["json_schema"]["schema"]["properties"]
    texts = quotations(body["messages"][-1]["content"])[1:]
    said: dict[str, Any] = {"reason": "by length"}
    if "better" in properties:
        one, other = properties["better"]["enum"][:2]
        said["better"] = "tie" if len(texts[0]) == len(texts[1]) else one if len(texts[0]) > len(texts[1]) else other
        return json.dumps(said)
    for name, field in properties.items():
        if name == "candidate":
            said[name] = field["enum"][0]
        elif name not in said:
            choices = field["enum"][:-1]  # the last one is that it cannot tell
            said[name] = choices[min(len(choices) - 1, len(texts[0]) // 40)]
    return json.dumps(said)


def handler(latency: float, errors: float) -> type[BaseHTTPRequestHandler]:
    """Returns the handler of a server's requests."""
    draw, lock = random.Random(0), threading.Lock()

    class Judge(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                failed = draw.random() < errors
            time.sleep(latency)
            choice = {"message": {"role": "assistant", "content": verdict(body)}, "finish_reason": "stop"}
            answer = json.dumps({} if failed else {"choices": [choice]}).encode()
            with suppress(ConnectionError):  # the run has ended
                self.send_response(500 if failed else 200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            return

    return Judge


class Server(ThreadingHTTPServer):
    """Holds hundreds of requests at a time."""

    daemon_threads = True
    request_queue_size = 1024


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), handler(float(sys.argv[1]), float(sys.argv[2])))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()

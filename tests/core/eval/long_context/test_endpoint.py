import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from arcforge_core.errors import ArcforgeError
from arcforge_core.eval.long_context import endpoint as module
from arcforge_core.eval.long_context.endpoint import ApproximateTokenizer, Endpoint
from arcforge_core.eval.long_context.tasks import Example


def example(prompt="what?", max_new_tokens=7):
    return Example("single", prompt, ("1",), 100, 0.5, max_new_tokens, 5)


class Server(ThreadingHTTPServer):
    """Answers what `reply` makes of a request's body, and notes bodies, paths and keys."""

    def __init__(self, reply):
        self.reply, self.bodies, self.paths, self.keys = reply, [], [], []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that has gone

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.paths.append(self.path)
        self.server.keys.append(self.headers.get("Authorization"))
        status, text = self.server.reply(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(reply):
        servers.append(Server(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def completion(text):
    return 200, json.dumps({"choices": [{"index": 0, "text": text}]})


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_completions_come_in_order(serve, end):
    server = serve(lambda body: completion(body["prompt"].upper()))
    with Endpoint(server.url + end, "glm", "secret") as endpoint:
        assert endpoint([example(f"p{n}", n + 1) for n in range(20)]) == [f"P{n}" for n in range(20)]
        assert endpoint.name == f"glm at {server.url}"
    assert set(server.paths) == {"/v1/completions"} and set(server.keys) == {"Bearer secret"}
    bodies = sorted(server.bodies, key=lambda body: body["max_tokens"])
    assert bodies[6] == {"prompt": "p6", "max_tokens": 7, "temperature": 0.0, "model": "glm"}


def test_neither_key_nor_model_need_be_given(serve):
    server = serve(lambda body: completion("x"))
    with Endpoint(server.url) as endpoint:
        assert endpoint([example()]) == ["x"]
    assert server.keys == [None] and "model" not in server.bodies[0]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((500, '{"error": {"message": "out of\\nmemory"}}'), "HTTP 500: out of\nmemory"),
        ((500, "<html>broken"), "HTTP 500: <html>broken"),
        ((404, ""), "HTTP 404: Not Found"),
        ((401, '{"error": "no key"}'), "HTTP 401"),
        ((200, "{"), "the reply is not a completion: '{'"),
        ((200, "{}"), "the reply is not a completion"),
        ((200, '{"choices": []}'), "the reply is not a completion"),
        ((200, '{"choices": [{"text": null}]}'), "the reply is not a completion: its text is None"),
        ((200, "[1]"), "the reply is not a completion"),
    ],
)
def test_what_is_no_completion_is_told(serve, reply, message):
    server = serve(lambda body: reply)
    with Endpoint(server.url, key="secret") as endpoint, pytest.raises(ArcforgeError) as caught:
        endpoint([example() for _ in range(3)])
    assert str(caught.value).startswith(f"suite.endpoint={server.url}: ") and message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_long_answer_is_shown_in_part(serve):
    server = serve(lambda body: (200, "x" * 10_000))
    with Endpoint(server.url) as endpoint, pytest.raises(ArcforgeError) as caught:
        endpoint([example()])
    assert len(str(caught.value)) < 400


def test_nobody_there(serve):
    server = serve(lambda body: completion("x"))
    server.shutdown()
    server.server_close()
    with Endpoint(server.url) as endpoint, pytest.raises(ArcforgeError, match=r"cannot be reached: .*refused"):
        endpoint([example()])


def test_no_answer_in_time(serve, monkeypatch):
    free = threading.Event()
    server = serve(lambda body: (free.wait(60), completion("x"))[1])
    monkeypatch.setattr(module, "SECONDS_TO_ANSWER", 0.05)
    with Endpoint(server.url) as endpoint, pytest.raises(ArcforgeError, match=r"no answer in time .ReadTimeout"):
        endpoint([example()])
    free.set()


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b:c", "http://x\n"])
def test_a_url_that_is_none(url):
    with pytest.raises(ArcforgeError, match=r"suite\.endpoint="):
        Endpoint(url)


def test_a_key_that_is_no_header():
    with Endpoint("http://127.0.0.1:9", key="a") as endpoint:
        assert endpoint.name == "model at http://127.0.0.1:9"
    with pytest.raises(ArcforgeError, match=r"suite\.endpoint="):
        Endpoint("http://127.0.0.1:9", key="käse☃")


def test_a_password_is_not_part_of_the_name():
    with Endpoint("http://me:hidden@127.0.0.1:9/v1") as endpoint:
        assert endpoint.name == "model at http://127.0.0.1:9"
        with pytest.raises(ArcforgeError) as caught:
            endpoint([example()])
    assert "hidden" not in str(caught.value)


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ArcforgeError, match=r"arcforge-core\[endpoint\]"):
        Endpoint("http://127.0.0.1:9")


def test_approximate_tokens():
    pieces = ApproximateTokenizer().encode("The code of tavo is 4821.\n")
    assert "".join(pieces) == "The code of tavo is 4821.\n" and len(pieces) == 5 + 4 + 1

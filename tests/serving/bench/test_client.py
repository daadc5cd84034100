import asyncio

import pytest

from arcforge_core.errors import ArcforgeError
from arcforge_serving.bench.client import Client
from arcforge_serving.bench.workloads import Message

ASKED = [Message("system", "be brief"), Message("user", "what?")]


def connect(url, model=None, **options):
    async def go():
        async with Client(url, "completions", **options) as client:
            await client.connect(model)
            return client.model, client.counts

    return asyncio.run(go())


def complete(server, api="completions", **options):
    async def go():
        async with Client(server.url, api, **options) as client:
            client.model = "fake"
            return await client.complete(ASKED, 5)

    return asyncio.run(go())


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_stream_is_read_whole(serve, answer, api):
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
    server = serve(lambda body: answer(usage=usage, delay=0.02))
    reply = complete(server, api, key="secret", extra={"temperature": 0.5})
    assert reply.error is None
    assert (reply.text, reply.finish_reason) == ("a b c", "stop")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (9, 4, 6)
    assert len(reply.arrivals) == 3 and 0.02 <= reply.arrivals[0] < reply.arrivals[1] < reply.arrivals[2]
    assert reply.seconds >= reply.arrivals[2] >= 0.06
    (body,) = server.bodies
    asked = (
        {"messages": [{"role": m.role, "content": m.content} for m in ASKED]}
        if api == "chat"
        else {"prompt": "be brief\nwhat?"}
    )
    settings = {"model": "fake", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    assert body == {**asked, **settings, "temperature": 0.5}
    assert server.paths == ["/v1/chat/completions" if api == "chat" else "/v1/completions"]


def test_reasoning_and_calls_of_tools_count_as_arrivals(serve, answer):
    deltas = [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}, {"content": "x"}]
    server = serve(lambda body: answer(texts=[{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]))
    reply = complete(server, "chat")
    assert (len(reply.arrivals), reply.text) == (3, "hmx")


def test_comments_and_names_of_events_are_passed_over(serve, answer):
    server = serve(lambda body: answer(texts=["raw:: alive\n\n", "raw:event: x\nid: 1\n\n", "a"], usage=None))
    reply = complete(server)
    assert (reply.error, reply.text, len(reply.arrivals), reply.completion_tokens) == (None, "a", 1, None)


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_line_ends_of_unicode_end_no_line(serve, answer, end):
    event = f'raw:data: {{"choices": [{{"index": 0, "text": "a{end}b"}}]}}\r\n\r\n'
    reply = complete(serve(lambda body: answer(texts=[event], usage=None)))
    assert (reply.error, reply.text) == (None, f"a{end}b")


def test_a_stream_may_end_by_done_or_by_a_finish_reason_alone(serve, answer):
    assert complete(serve(lambda body: answer(done=False))).error is None
    assert complete(serve(lambda body: answer(finish=None))).error is None


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"status": 503, "texts": ["too many"]}, "HTTP 503", "too many"),
        ({"breaks": True}, "broken stream", ""),
        ({"done": False, "finish": None}, "broken stream", "without"),
        ({"texts": [{"error": {"message": "out of memory"}}]}, "error in the stream", "out of memory"),
        ({"texts": ["raw:data: {\n\n"]}, "malformed event", "'{'"),
        ({"texts": ["raw:data: [1]\n\n"]}, "malformed event", "[1]"),
        ({"texts": ["a", {"usage": {}, "choices": [7]}]}, "malformed event", "7"),
        ({"texts": [], "finish": None}, "empty answer", "no token"),
        ({"delay": 1.0}, "timeout", "0.3"),
    ],
)
def test_what_goes_wrong_has_a_kind(serve, answer, options, kind, message):
    reply = complete(serve(lambda body: answer(**options)), timeout=float(message) if kind == "timeout" else 60.0)
    assert reply.error == kind and message in reply.message


def test_a_token_without_text_arrives_with_the_end(serve, answer):
    reply = complete(serve(lambda body: answer(texts=[], usage={"prompt_tokens": 1, "completion_tokens": 1})))
    assert (reply.error, len(reply.arrivals), reply.completion_tokens) == (None, 1, 1)


def test_nobody_there(serve):
    server = serve()
    server.shutdown()
    server.server_close()
    assert complete(server).error == "connection"
    with pytest.raises(ArcforgeError, match=r"url=http://127.0.0.1:\d+/v1: cannot be reached"):
        connect(server.url)


def test_the_only_model_is_taken_and_others_are_named(serve):
    assert connect(serve().url) == ("fake", True)
    with pytest.raises(ArcforgeError, match=r"model_name='fakr': .* has fake; did you mean 'fake'\?"):
        connect(serve().url, "fakr")
    with pytest.raises(ArcforgeError, match=r"model_name=None: must be given: .* has a, b"):
        connect(serve(models=("a", "b")).url)
    assert connect(serve(models=("a", "b")).url, "b") == ("b", True)


def test_a_server_that_lists_no_models_needs_the_name(serve):
    with pytest.raises(ArcforgeError, match=r"must be given: .* lists none"):
        connect(serve(models=None).url)
    assert connect(serve(models=None).url, "mine") == ("mine", True)


def test_keys(serve):
    server = serve(key="right")
    assert connect(server.url, key="right") == ("fake", True)
    with pytest.raises(ArcforgeError, match=r"refuses the key of ARCFORGE_API_KEY \(HTTP 401: invalid key\)"):
        connect(server.url, key="wrong")
    with pytest.raises(ArcforgeError, match="wants a key: set ARCFORGE_API_KEY"):
        connect(server.url)
    hidden = serve(key="right", models=None)  # a server that asks for the key at the request only
    with pytest.raises(ArcforgeError, match="refuses the key"):
        connect(hidden.url, "mine", key="wrong")


def test_a_server_that_does_not_know_stream_options_is_asked_without(serve, answer):
    def reply(body):
        return answer(status=422, texts=["stream_options: unknown field"]) if "stream_options" in body else answer()

    assert connect(serve(reply).url) == ("fake", False)


def test_a_server_that_fails_the_first_request_is_told(serve, answer):
    with pytest.raises(ArcforgeError, match="a request of one token fails: HTTP 500: broken"):
        connect(serve(lambda body: answer(status=500, texts=["broken"])).url)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://[x"])
def test_a_url_that_is_none(url):
    with pytest.raises(ArcforgeError, match="url="):
        connect(url)


def test_a_password_in_the_url_is_not_shown(serve):
    server = serve()
    server.shutdown()
    server.server_close()
    with pytest.raises(ArcforgeError) as caught:
        connect(server.url.replace("http://", "http://me:secret@"))
    assert "secret" not in str(caught.value)

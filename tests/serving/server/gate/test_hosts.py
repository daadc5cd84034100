import socket
from dataclasses import replace

import httpx
import pytest

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.gate.hosts import Hosts

OWN = ["localhost", "LOCALHOST:1", "LocalHost.", "127.0.0.1:8000", "127.255.3.4", "[::1]", "[::1]:99999", "localhost:"]
FOREIGN = [
    "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8000", "[::2]", "10.0.0.1",
    "0.0.0.0", "2130706433", "127.1", "[::ffff:127.0.0.1]", "localhost..", "xn--lcalhost-xxx",
]  # fmt: skip
MALFORMED = [
    "", "localhost, evil.example", "localhost evil", "user@localhost", "localhost/x", "[::1", "::1", "localhost:80:80",
    "localhost:1e3", "loc\u0430lhost", "localhost\u3002", "http://localhost",
]  # fmt: skip


def told(address, host, method="GET", path="/health", origin=None, version="1.1", more=""):
    """Returns the status that a request of these headers is answered with, written to the socket byte by byte."""
    lines = [f"{method} {path} HTTP/{version}"]
    lines += [] if host is None else [f"Host: {host}"]
    lines += [] if origin is None else [f"Origin: {origin}"]
    head = "\r\n".join([*lines, "Connection: close", "Content-Length: 0"]) + f"\r\n{more}\r\n"
    with socket.create_connection(address, 60) as client:
        client.sendall(head.encode())
        return int(client.makefile("rb").readline().split()[1])


@pytest.fixture(scope="module")
def address(live):
    _, client = live
    return client.base_url.host, client.base_url.port


@pytest.mark.parametrize(("hosts", "status"), [(OWN, 200), (FOREIGN, 421), (MALFORMED, 400)])
def test_on_loopback_only_names_of_this_machine_are_answered(address, hosts, status):
    assert {host: told(address, host) for host in hosts} == dict.fromkeys(hosts, status)


def test_every_route_and_error_is_refused_alike(address):
    for method, path in (("GET", "/v1/models"), ("GET", "/"), ("POST", "/v1/chat/completions"), ("GET", "/nowhere")):
        assert told(address, "evil.example", method, path) == 421
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    assert told(address, "evil.example", more=upgrade) == 421


def test_a_missing_host_is_an_error_of_the_protocol_that_has_it(address):
    assert told(address, None) == 400
    assert told(address, None, version="1.0") == 200  # no browser speaks it
    assert told(address, "localhost", more="Host: evil.example\r\n") == 400


@pytest.mark.parametrize(("origin", "status"), [
    ("http://localhost:8000", 200), ("HTTP://LOCALHOST:8000", 200), ("https://localhost:8000", 200),
    ("http://localhost:3000", 403), ("http://127.0.0.1:8000", 403), ("https://evil.example", 403), ("null", 403),
    ("", 403), ("http://localhost:8000@evil.example", 403), ("http://localhost:8000.evil.example", 403),
    ("chrome-extension://localhost:8000", 403), ("http://localhost:8000 http://evil.example", 403),
])  # fmt: skip
def test_only_the_servers_own_pages_may_ask(address, origin, status):
    assert told(address, "localhost:8000", origin=origin) == status


def test_every_origin_that_is_given_has_to_be_the_servers_own(address):
    foreign = "Origin: https://evil.example\r\n"
    assert told(address, "localhost:8000", more=foreign, origin="http://localhost:8000") == 403


def test_the_port_of_a_scheme_may_be_left_out(address):
    assert told(address, "localhost", origin="http://localhost") == 200
    assert told(address, "localhost:443", origin="https://localhost") == 200
    assert told(address, "localhost", origin="http://localhost:8080") == 403


def test_refusals_have_the_shape_of_the_dialect_and_name_the_option(live):
    _, client = live
    base = str(client.base_url).removesuffix("/v1/")
    got = httpx.post(f"{base}/v1/messages", headers={"host": "evil.example"})
    assert got.status_code == 421 and got.json()["type"] == "error"
    got = httpx.post(f"{base}/v1/completions", headers={"origin": "https://evil.example"})
    assert got.status_code == 403 and "allowed_origins" in got.json()["error"]["message"]
    assert got.headers["x-request-id"]


def config(**options):
    return ServeConfig(PagedEngineConfig(), **options)


def accepts(options, host, local="192.0.2.1"):
    scope = {"type": "http", "headers": [(b"host", host.encode())], "server": (local, 8000), "path": "/"}
    return Hosts.of(config(**options)).problem(scope) is None


def test_names_of_proxies_are_configured_and_public_addresses_answer_to_all_names():
    assert accepts({"allowed_hosts": ["Chat.Example.com"]}, "chat.example.com.:443")
    assert not accepts({"allowed_hosts": ["chat.example.com"]}, "example.com")
    assert all(accepts({"host": host}, "chat.example.com") for host in ("0.0.0.0", "::", ""))
    public = {"host": "0.0.0.0", "allowed_hosts": ["chat.example.com", "2001:db8::1"]}
    for host, fine in (
        ("chat.example.com", True),
        ("[2001:db8::1]", True),
        ("192.0.2.1:8000", True),
        ("evil.example", False),
    ):
        assert accepts(public, host) == fine  # 192.0.2.1 is the address that the client has connected to


def test_a_listed_origin_may_ask_and_read(live):
    state, client = live
    state.guard = replace(state.guard, hosts=Hosts.of(config(allowed_origins=["https://chat.example.com"])))
    base, origin = str(client.base_url).removesuffix("/v1/"), {"origin": "https://chat.example.com"}
    try:
        got = httpx.get(f"{base}/v1/models", headers=origin)
        assert (got.status_code, got.headers["access-control-allow-origin"]) == (200, origin["origin"])
        asks = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        got = httpx.options(f"{base}/v1/chat/completions", headers=asks)
        assert got.status_code == 200 and got.headers["access-control-allow-headers"] == "authorization"
        assert httpx.options(f"{base}/v1/models", headers={**asks, "origin": "https://evil.example"}).status_code == 403
    finally:
        state.guard = Guard()


@pytest.mark.parametrize("options", [
    {"allowed_hosts": ["https://a"]}, {"allowed_hosts": ["a:80"]}, {"allowed_hosts": ["*"]},
    {"allowed_origins": ["a.example"]}, {"allowed_origins": ["https://a.example/"]}, {"allowed_origins": ["*"]},
])  # fmt: skip
def test_wrong_names_are_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        config(**options)

"""The files of the page, without a browser."""

import re

import pytest

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.auth import USER_KEYS
from arcforge_serving.server.gate.guard import Guard
from arcforge_serving.server.pages.page import contents
from support.servers import client_of, small_state

VENDORED = ("markdown-it.umd.min.js",)
SCRIPTS = sorted(name for name in contents() if name.endswith(".js"))


def test_the_page_is_open_and_strict(client):
    reply = client.get("/")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert "/page/{name}" not in client.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_the_description_of_the_api_loads_nothing_from_elsewhere(client, path):
    reply, chat = client.get(path), client.get("/")
    assert reply.status_code == 200
    assert reply.headers["content-security-policy"] == chat.headers["content-security-policy"]
    sources = re.findall(r'(?:src|href)="([^"]+)"', reply.text)
    assert "page/docs.js" in sources
    assert {client.get(f"/{source}").status_code for source in sources} == {200}


def test_a_copy_that_is_still_right_is_not_sent_again(client):
    first = client.get("/page/main.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = client.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/page/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("name", ["none.js", "..%2fapp.py", "index.html%00", "%2e%2e/state.py"])
def test_there_is_nothing_else(client, name):
    assert client.get(f"/page/{name}").status_code == 404


def test_what_is_asked_for_is_there():
    files = contents()
    pages = [name for name in files if name.endswith(".html")]
    wanted = {f"page/{name}" for name in files} - {f"page/{name}" for name in pages}
    found = {part for name in pages for part in re.findall(r'(?:href|src)="(page/[^"]+)"', files[name].decode())}
    for name in SCRIPTS:
        found |= {f"page/{part}" for part in re.findall(r'(?:from|import) "\./([\w.-]+)"', files[name].decode())}
    assert found == wanted
    assert sum(map(len, files.values())) < 310_000, "51 kB are uPlot, which the chat does not load; 101 markdown-it"


@pytest.mark.parametrize("name", sorted(contents()))
def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup(name):
    text = contents()[name].decode()
    for address in re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"']*", text):
        names = ("http://www.w3.org/", "https://github.com/leeoniya/uPlot")  # of SVG and a library; nothing is loaded
        assert address.startswith(names), address
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc",
                 "DOMParser", "createContextualFragment", "setHTML"):  # fmt: skip
        assert sink not in text, sink
    schemes = "" if name in VENDORED else "|[\"'`]javascript:"  # markdown-it names it in order to refuse it
    assert not re.search(rf"\son\w+=\"|<style|style=\"{schemes}", text)
    assert not re.search(r"[\"'`]/(?:v1|page)", text), (
        "addresses are relative, for proxies that put the page under a path"
    )


def test_the_page_is_told_what_is_served(client):
    assert client.get("/page/model.json").json() == {
        "name": "small", "max_model_len": 1024, "chat": True, "no_chat": "", "thinks": True, "suggestions": [],
        "tools": [], "lesson": False, "base": False,
    }  # fmt: skip


def test_with_keys_only_the_files_are_open(tokenizer):
    state = small_state(tokenizer)
    state.guard = Guard.of(ServeConfig(PagedEngineConfig()), {USER_KEYS: "users-key"})
    with client_of(state) as client:
        assert client.get("/").status_code == client.get("/page/main.js").status_code == 200
        assert client.get("/page/model.json").status_code == 401
        assert client.get("/page/model.json", headers={"Authorization": "Bearer users-key"}).status_code == 200

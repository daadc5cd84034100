"""The page of ``arcforge-env label``: one item, blind, answered by its own form alone."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from arcforge_core.errors import ConfigError
from arcforge_rl.rewards.judge.labels import Labelling, Labels, order_of, read_items
from arcforge_rl.rollouts.labelling_page import app_of, serve


@pytest.fixture
def desk(tmp_path: Path) -> Labelling:
    rows = [
        {"prompt": f"<b>p{n}</b>", "chosen": f"good{n}", "rejected": f"<script>{n}", "author_chosen": "WRITER"}
        for n in range(2)
    ]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Labelling("ann", order_of(read_items(path, None), "ann", 0), Labels(tmp_path / "labels.jsonl", None), None)


def test_the_form_judges_item_by_item(desk: Labelling) -> None:
    client = TestClient(app_of(desk), base_url="http://127.0.0.1")
    page = client.get("/").text
    assert "WRITER" not in page and "&lt;script&gt;" in page and "<script>" not in page and "<b>p" not in page
    hidden = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]+)"', page))
    assert client.post("/", data={**hidden, "better": "1"}).status_code == 200  # the next item's page
    assert desk.done == 1 and len(desk.labels.records) == 1
    client.post("/", data={**hidden, "better": "2"})
    assert len(desk.labels.records) == 1, "a form sent twice counts once"
    hidden = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]+)"', client.get("/").text))
    assert client.post("/", data={**hidden, "better": "3"}).status_code == 422
    assert client.post("/", data={**hidden, "better": "=", "of-this-start": "x"}).status_code == 403
    assert client.post("/", content=b"x" * 200_000).status_code == 413 and desk.done == 1
    assert "All is judged" in client.post("/", data={**hidden, "better": "="}).text
    assert desk.labels.records[1]["tie"] is True
    assert TestClient(app_of(desk), base_url="http://elsewhere.example").get("/").status_code == 400


def test_a_port_in_use_is_named(desk: Labelling) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"port=.*cannot be listened on"):
            serve(desk, taken.getsockname()[1])

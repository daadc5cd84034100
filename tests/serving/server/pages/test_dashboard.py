"""The dashboard reads what the server writes; see test_files.py for what it loads, test_screens.py for its looks."""

import json
import re
import shutil
import subprocess

import pytest

from arcforge_serving.server.pages.page import contents

SCRIPT = contents()["dashboard.js"].decode()


def test_the_page_is_served_to_everybody(client):
    reply = client.get("/dashboard")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert reply.headers["content-security-policy"] == client.get("/").headers["content-security-policy"]


def test_it_reads_metrics_that_there_are(client):
    client.get("/health")
    page = client.get("/metrics").text
    names = set(re.findall(r"arcforge:[a-z_0-9]+", SCRIPT))
    assert len(names) > 15
    for name in names:
        assert re.search(rf"^{name}(_bucket)?[{{ ]", page, re.MULTILINE), name


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's functions in node")
def test_its_figures_are_those_of_the_metrics(client):
    before = client.get("/metrics").text
    ask = {"prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True}
    assert client.post("/v1/completions", json=ask).status_code == 200
    texts = json.dumps([before, client.get("/metrics").text])
    program = f"""{SCRIPT}
const [old, now] = {texts}.map((text, i) => ({{ at: 10 * i, samples: parse(text) }}));
const values = figures(now, old);
const shown = values.map((v, i) => [CARDS[i][0], Number.isFinite(v) ? CARDS[i][1](v) : null, v]);
console.log(JSON.stringify([shown, answers(now.samples)]));
"""
    ran = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    cards, answers = json.loads(ran.stdout)
    figures = {name: value for name, _, value in cards}
    assert figures["Tokens generated / s"] == pytest.approx(0.8)
    assert figures["Prompt tokens / s"] == pytest.approx(0.3)
    assert figures["Requests / s"] > 0
    assert figures["Running sequences"] == 0
    assert 0 < figures["First token, median"] <= figures["First token, 95 %"] < 60
    assert figures["Tokens per check of drafts"] is None  # nothing was drafted
    assert ["/v1/completions", "200"] in [answer[:2] for answer in answers]

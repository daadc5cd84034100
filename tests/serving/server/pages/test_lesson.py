"""The lesson's routes, and its panel in the page."""

import pytest

from arcforge_core.testing.small_models import small_tokenizer
from support.browsing import opened
from support.lessons import lesson, release
from support.servers import client_of, listening, scripted_state
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def state():
    return scripted_state(small_tokenizer(), lambda prompt: "</think>Yes.<|user|>")


def test_a_server_without_a_lesson_offers_none(state):
    with client_of(state) as client:
        assert client.get("/page/model.json").json()["lesson"] is False
        for answer in (client.get("/page/lesson"), client.post("/page/lesson"), client.get("/page/lesson/report.html")):
            assert answer.status_code == 404


def test_the_routes_start_watch_and_show(state):
    state.lesson = lesson(seconds=60)
    with client_of(state) as client:
        assert client.get("/page/model.json").json()["lesson"] is True
        assert client.get("/page/lesson").json()["status"] == "ready"
        assert client.get("/page/lesson/report.html").status_code == 404
        assert client.post("/page/lesson").json()["status"] == "running"
        assert client.post("/page/lesson").status_code == 409
        release(state.lesson)
        wait_until(lambda: client.get("/page/lesson").json()["status"] != "running")
        found = client.get("/page/lesson").json()
        assert found == {
            "status": "finished", "message": "", "taught": True, "share": 0.5, "rewards": [0.5, 0.75],
            "heldout": [[0, 0.4], [2, 0.85]], "report": True,
        }  # fmt: skip
        page = client.get("/page/lesson/report.html")
        assert "Report" in page.text and "sandbox allow-scripts" in page.headers["content-security-policy"]


def test_a_lesson_in_progress_ends_with_the_server(state):
    state.lesson = lesson(seconds=60)
    with client_of(state) as client:
        client.post("/page/lesson")
    assert not state.lesson.running


@pytest.mark.slow(reason="a browser")
def test_the_panel_teaches_and_tells(context, faults, state):
    state.lesson = lesson(seconds=60)
    with listening(state) as (_, address):
        page = opened(context, address, faults)
        panel = page.get_by_role("region", name="Reinforcement learning")
        panel.get_by_role("button", name="Teach it").click()
        panel.get_by_role("heading", name="Learning").wait_for()
        panel.get_by_role("img", name="Mean reward by step: 50% at step 1, 75% at step 2").wait_for()
        release(state.lesson)
        panel.get_by_text("Held-out tasks solved: 40% → 85%").wait_for()
        page.get_by_text("The model has learned: ask it again.").wait_for()
        with page.expect_popup() as opening:
            panel.get_by_role("link", name="The report").click()
        assert opening.value.get_by_role("heading", name="Report").inner_text() == "Report"


@pytest.mark.slow(reason="a browser")
def test_a_lesson_that_fails_says_why_in_the_panel(context, faults, state):
    state.lesson = lesson(code=2)
    with listening(state) as (_, address):
        page = opened(context, address, faults)
        panel = page.get_by_role("region", name="Reinforcement learning")
        panel.get_by_role("button", name="Teach it").click()
        panel.get_by_text("init=demo: is damaged").wait_for()
        panel.get_by_role("button", name="Again").wait_for()

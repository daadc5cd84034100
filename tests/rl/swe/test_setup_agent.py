"""An agent sets up what rules cannot, by names of packages and of test files alone, whatever it says."""

import asyncio
import json
import os
import threading

import pytest

from arcforge_core.errors import UnavailableError
from arcforge_rl.configs.others import AgentConfig
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.agent_options import AgentBounds
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.packages import LONGEST
from arcforge_rl.swe.results import TestRun
from arcforge_rl.swe.setup import AGENT, RULES, Attempt, log_attempts, set_up
from arcforge_rl.swe.setup_agent import set_up_by_agent
from arcforge_rl.swe.setup_tools import SHOWN, TRIES
from support.clocks import MovedClock
from support.listening import listening
from support.setup_agents import World, calling, model_server, results_of, trying
from support.trees import write_files

PYTHON = language_of("python")
ODD = Attempt((), "packages are missing: oddmod")


@pytest.fixture
def world(monkeypatch):
    """A world in which tests need the package odd-dist."""
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.01)
    return placed(World(["odd-dist"]), monkeypatch)


def placed(world, monkeypatch):
    for module in ("setup", "setup_tools"):
        monkeypatch.setattr(f"arcforge_rl.swe.{module}.runs_of", world)
    return world


clocks = []
"""That of the work of the agent, which a server may move."""


def attempts_of(url, tree, language=PYTHON, first=(ODD,), calls=40, seconds=60.0, patience=60.0, attempts=2):
    """Lets the agent of a server work after some attempts of rules; returns all."""
    made = [*first]
    bounds = AgentBounds(AgentConfig(url=url, attempts=attempts, seconds=patience), calls, seconds)

    async def work():
        clocks[:] = [MovedClock()]
        await set_up_by_agent(bounds, "toy", language, tree, 60, made)

    asyncio.run(work())
    return made


def refusals(reply, tree, **options):
    """Returns the results of the calls of one reply, which the agent ends after."""
    with model_server([reply, {"role": "assistant", "content": "No idea."}]) as (url, asked):
        made = attempts_of(url, tree, **options)
    assert made[1:] == [Attempt((), f"{ODD.reason}; the agent ended with 'No idea.'", AGENT)]
    return results_of(asked)


def test_an_agent_finds_the_package_that_no_file_declares(world, repository, tmp_path):
    (repository / "README").write_text("It needs the\npackage odd-dist.\n")
    _, made = asyncio.run(set_up(PYTHON, repository, 60))
    assert [one.by for one in made] == [RULES] * 3 and made[-1].reason
    replies = [
        calling(("list", {"folder": "."}), ("read", {"path": "./README", "first": 2})),
        trying("wrong"), trying("wrong", "odd-dist"),
    ]  # fmt: skip
    with model_server(replies) as (url, asked):
        made = attempts_of(f"{url}/v1", repository, first=made)
    assert made[3:] == [
        Attempt(("wrong",), "0 tests pass, 0 fail, 0 files cannot be collected; at least 3 must pass, and half of all",
                AGENT),
        Attempt(("odd-dist", "wrong"), "", AGENT),
    ]  # fmt: skip
    assert len(asked) == 3, "a set-up that works ends the conversation"
    question = asked[0]["messages"][0]["content"]
    for part in ("tests/test_toy.py", "README", "packages are missing: oddmod", "requirement of pip", "python"):
        assert part in question
    top, readme, tried = results_of(asked)
    assert top.splitlines()[-3:] == ["README", "tests/", "toy/"]
    assert readme == "README: lines 2 to 2 of 2\npackage odd-dist."
    assert "Packages that failures miss: oddmod" in tried and "No module named 'oddmod'" in tried
    log_attempts(tmp_path / "log", "toy", "python", made)
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [row["by"] for row in rows] == [RULES] * 3 + [AGENT] * 2
    assert rows[-1] == {
        "repo": "toy", "language": "python", "packages": ["odd-dist", "wrong"], "reason": "", "by": AGENT,
        "left_out": [],
    }  # fmt: skip


def test_a_test_file_that_ends_the_run_is_left_out(repository, monkeypatch):
    write_files(repository, {"tests/test_net.py": "raise SystemExit(7)\n"})
    world = placed(World([], "tests/test_net.py"), monkeypatch)
    both = ["tests/test_net.py", "tests/test_toy.py"]
    replies = [
        trying(), trying(leave_out=both), trying(leave_out=["tests/conftest.py"]), trying(leave_out=both[:1] * 2)
    ]  # fmt: skip
    with model_server(replies) as (url, asked):
        made = attempts_of(url, repository)
    assert made[1:] == [
        Attempt((), "the run broke: SystemExit: 7", AGENT), Attempt((), "", AGENT, ("tests/test_net.py",)),
    ]  # fmt: skip
    assert [paths for _, paths in world.runs] == [tuple(both), ("tests/test_toy.py",)]
    assert results_of(asked)[1:] == [
        "Error: at most half of the 2 test files can be left out, not 2",
        "Error: 'tests/conftest.py' is no test file of the repository",
    ]


@pytest.mark.parametrize("given", [
    {"packages": ["--index-url=http://evil"]}, {"packages": ["x", "http://evil/x.whl"]}, {"packages": ["./toy"]},
    {"packages": ["x; touch /tmp/x"]}, {"packages": ["a" * 10**6]}, {"packages": ["x"] * 10**4},
    {"packages": "x"}, {"packages": [1]}, {"packages": {"x": 1}}, {"packages": ["toy"]}, {"packages": ["Toy[a]==1"]},
    {"packages": [], "leave_out": ["../test_x.py"]}, {"packages": [], "leave_out": "all"}, {"leave_out": []},
    {"packages": [], "command": "true"},
])  # fmt: skip
def test_tries_that_are_refused_run_nothing(world, repository, given):
    [told] = refusals(calling(("try", given)), repository)
    assert told.startswith("Error: ") and len(told) < 3 * LONGEST + 200 and world.runs == []


def test_only_files_of_the_repository_are_read(world, repository, tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    write_files(repository, {"big.txt": "x" * (1 << 21), "long.txt": "".join(f"line {n}\n" for n in range(9000))})
    (repository / "link").symlink_to(tmp_path / "secret")
    (repository / "folder").symlink_to(tmp_path)
    (repository / "raw").write_bytes(b"\xff\xfe\0")
    os.mkfifo(repository / "pipe")
    paths = [
        "../secret", str(tmp_path / "secret"), "link", "folder/secret", "tests/../../secret", "pipe", "toy", "raw",
        "big.txt", "", "\0", "a" * 10**5, "/etc/passwd", "~/x",
    ]  # fmt: skip
    odd = [{"path": "long.txt", "first": first, "last": last} for first, last in ((0, 1), (2, 1), ("1", 2), (1, 2.5))]
    folders = ["..", "/", "folder", str(tmp_path), "toy/..", "none"]
    calls = [("read", {"path": path}) for path in paths] + [("read", given) for given in odd]
    calls += [("list", {"folder": folder}) for folder in folders]
    told = refusals(calling(*calls), repository)
    assert all(one.startswith("Error: ") and "SECRET" not in one and len(one) < 1000 for one in told)
    top, few, many = refusals(
        calling(("list", {"folder": ""}), ("read", {"path": "long.txt"}),
                ("read", {"path": "long.txt", "first": 1, "last": 10**30})), repository,
    )  # fmt: skip
    assert not {"link", "folder", "folder/", "pipe"} & {*top.splitlines()}
    assert few.splitlines()[-1] == "line 199"
    assert many.endswith("line 8999") and "characters left out" in many and len(many) < SHOWN + 100


@pytest.mark.parametrize(("reply", "ending", "requests"), [
    (trying("wrong"), "has used its 5 calls", 6),
    (calling(*[("try", {"packages": [f"x{n}"]}) for n in range(6)]), "has used its 5 calls", 1),
    (calling(("done", {"reason": "it needs a database"})), "gave up: it needs a database", 1),
    (calling(("shell", {"command": "id"})), "has used its 5 calls", 6),
    (calling(("try", "{half")), "made replies that cannot be read: agents.setup: no chat completion: ", 3),
    (calling(("try", "[" * 10**5)), "made replies that cannot be read: ", 3),
    (calling(("try", '{"packages": ["\\ud800"]}')), "made replies that cannot be read: ", 3),
    (calling(("try", "[]")), "made replies that cannot be read: ", 3),
    ({"role": "assistant", "tool_calls": ["x"]}, "made replies that cannot be read: ", 3),
])  # fmt: skip
def test_an_agent_that_ends_without_a_set_up(world, repository, reply, ending, requests):
    with model_server([reply]) as (url, asked):
        made = attempts_of(url, repository, calls=5)
    assert f"; the agent {ending}" in made[-1].reason and made[-1].by == AGENT and len(made[-1].reason) < 700
    assert len(asked) == requests and len(world.runs) <= 1, "the same set-up is tried once"


def test_a_reply_that_cannot_be_read_is_asked_for_again(world, repository):
    with model_server([calling(("try", "{half")), trying("odd-dist")]) as (url, asked):
        made = attempts_of(url, repository)
    assert not made[-1].reason and asked[0]["messages"] == asked[1]["messages"] and asked[0]["seed"] != asked[1]["seed"]


def test_names_and_outputs_that_a_request_cannot_carry(repository, monkeypatch):
    for name in ("tests/test_\udcff.py", "quaint\udcff", "quaint\nlines"):
        (repository / name).write_text("")

    async def odd(*_):
        return [TestRun(texts={"a\ud800": "said \ud800"}, reason="the run broke")]

    monkeypatch.setattr("arcforge_rl.swe.setup_tools.runs_of", odd)
    with model_server([trying("x"), calling(("list", {"folder": "."}), ("done", {"reason": ""}))]) as (url, asked):
        attempts_of(url, repository)
    assert "said ?" in results_of(asked)[0] and "test_?.py" in asked[0]["messages"][0]["content"]
    told = "".join(message["content"] or "" for message in asked[-1]["messages"])
    assert "quaint" not in told


def test_tries_end(world, repository):
    with model_server(lambda messages: trying(f"wrong{len(messages)}")) as (url, _):
        made = attempts_of(url, repository)
    assert made[-1].reason.endswith(f"; the agent has used its {TRIES} tries") and len(world.runs) == TRIES


def test_packages_that_the_registry_lacks_are_told(world, repository):
    with model_server([trying("oddmod"), trying("odd-dist")]) as (url, asked):
        made = attempts_of(url, repository)
    assert "No matching distribution found for oddmod" in results_of(asked)[0]
    assert not made[-1].reason and len(made) == 3


def test_a_layer_that_cannot_be_stored_is_no_failure_of_the_agent(repository, monkeypatch):
    async def full(*_):
        raise LayerError("space", "no space left in /cache")

    monkeypatch.setattr("arcforge_rl.swe.setup_tools.runs_of", full)
    with model_server([trying("x")]) as (url, _), pytest.raises(UnavailableError, match="toy: no space left in /cache"):
        attempts_of(url, repository)


def test_a_server_that_is_down_or_never_answers(world, repository):
    with pytest.raises(UnavailableError, match=r"toy: the agent's server gave no reply: http://127.0.0.1:9/"):
        attempts_of("http://127.0.0.1:9", repository)
    held = []

    def wait(messages):
        held.append(messages)
        clocks[0].move(601)
        return over.wait(60) and trying()

    over = threading.Event()
    with model_server(wait) as (url, _):
        with pytest.raises(UnavailableError, match=r"gave no reply in 600 s"):
            attempts_of(url, repository, seconds=600, patience=1000)
        over.set()
    assert len(held) == 1 and world.runs == []


def test_a_server_that_answers_no_longer(world, repository):
    def once(messages):
        asyncio.run(asyncio.sleep(1.0 if len(messages) > 1 else 0.0))
        return trying("x")

    with model_server(once) as (url, _), pytest.raises(UnavailableError, match=r"gave no reply in 0\.2 s"):
        attempts_of(url, repository, seconds=0.7, patience=0.2, attempts=9)


def test_time_ends_the_work_of_an_agent(world, repository):
    def later(messages):
        if len(messages) > 2:
            clocks[0].move(601)
            over.wait(60)
        return trying(f"x{len(messages)}")

    over = threading.Event()
    with model_server(later) as (url, _):
        made = attempts_of(url, repository, seconds=600, patience=1000)
        over.set()
    assert made[-1].reason.endswith("; the agent has used its 600 s") and made[1].packages == ("x1",)


def test_a_model_without_room_has_failed_and_its_server_has_not(repository):
    def refuse(request):
        request.body()
        request.answer(400, {"error": {"message": "This model's maximum context length is 9 tokens"}})

    with listening(refuse) as url:
        made = attempts_of(url, repository)
    assert made[-1].reason.endswith("; the agent has no room for a longer conversation")


def test_no_copy_of_a_repository_of_npm_is_installed(tmp_path, monkeypatch):
    package = {"name": "@acme/toy", "devDependencies": {"tape": "^5.0.0"}}
    files = {"package.json": json.dumps(package), "index.js": "", "test/a.js": "require('tape')('x', () => {})\n"}
    tree = write_files(tmp_path / "toy", files)
    world = placed(World(["odd-one@^1"]), monkeypatch)
    language = language_of("javascript")
    with model_server([trying("@acme/toy@*"), trying("odd-one@^1", "tape@^5.0.0")]) as (url, asked):
        made = attempts_of(url, tree, language)
    assert "no copy is installed" in results_of(asked)[0]
    assert world.runs[0][0] == made[-1].packages == ("-@acme/toy", "odd-one@^1", "tape@^5.0.0")


def test_a_repository_without_tests_asks_no_agent(tmp_path):
    tree = write_files(tmp_path / "toy", {"a.py": ""})
    made = attempts_of("http://127.0.0.1:9", tree, first=[Attempt((), "it has no tests")])
    assert made[-1] == Attempt((), "it has no tests; the agent has nothing to choose", AGENT)

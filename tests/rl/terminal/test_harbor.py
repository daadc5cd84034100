"""Task folders, ``task.toml`` and Dockerfiles are read, written, and refused in one line."""

import os

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.terminal.dockerfile import read_dockerfile
from arcforge_rl.terminal.harbor import HarborStep, HarborTask, read_task, toml_of, write_task
from arcforge_rl.terminal.settings import megabytes, read_settings, unplayable
from arcforge_rl.terminal.table import drawn_task
from arcforge_rl.terminal.worlds import copied


@pytest.fixture
def task():
    return drawn_task("services", 1)[0]


@pytest.fixture
def folder(task, tmp_path):
    write_task(task, tmp_path / task.name)
    return tmp_path / task.name


def test_a_written_task_is_read_as_it_was(task, folder):
    assert read_task(folder) == task
    assert (folder / "tests/test.sh").stat().st_mode & 0o777 == 0o755
    with pytest.raises(DataError, match="exists"):
        write_task(task, folder)
    assert unplayable(task.settings) == ""


def test_settings_are_read_as_they_were_written():
    settings = {
        "schema_version": "1.4",
        "artifacts": ["/app", {"source": "/logs", "exclude": ["*.tmp"]}],
        "metadata": {"odd key": 'quotes " and \\ and \x7f and \n lines ü', "deep": {"list": [1, 2.5, True]}},
        "verifier": {"timeout_sec": 30.0, "collect": [{"command": "true"}], "env": {"A": "b"}},
    }
    text = toml_of(settings)
    assert read_settings(text, "here") == settings and "[verifier]\ntimeout_sec = 30.0" in text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('schema_version = "2.0"', "schema_version='2.0': must be one of 1.0, 1.1, 1.2, 1.3, 1.4"),
        ('version = "1.0"\nschema_version = "1.0"', "must be given once"),
        ("schema_version = 1.4", "schema_version=1.4"),
        ("[verifer]", "verifer is not known; did you mean 'verifier'?"),
        ("[verifier]\ntimeout_secs = 3.0", "verifier.timeout_secs is not known; did you mean 'timeout_sec'?"),
        ("[verifier]\ntimeout_sec = nan", "seconds"),
        ("[verifier]\ntimeout_sec = true", "seconds"),
        ("[environment]\nmemory_mb = -1", "whole number"),
        ('[environment]\nmemory = "lots"', "size"),
        ('[task]\nname = "no organisation"', "org/task"),
        ("[[verifier.collect]]\ncomand = 'x'", r"verifier.collect\[0\].comand is not known"),
        ("artifacts = [1]", r"artifacts\[0\]=1: must be a text"),
        ("multi_step_reward_strategy = 'mean'", "there are none"),
        ("steps = [{name = '../up'}]", "name of a folder"),
        ("steps = [{min_reward = 1}]", r"steps\[0\].name is missing"),
        ("steps = [{name = 'One'}, {name = 'one'}]", "'One' comes twice"),
        ("steps = [{name = 'a', min_reward = nan}]", "a number or a table"),
        ("a = ", "Invalid value"),
    ],
)
def test_settings_that_are_refused(text, reason):
    with pytest.raises(DataError, match=f"^here: .*{reason}") as error:
        read_settings(text, "here")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"environment": {"network_mode": "public"}}, "no network"),
        ({"environment": {"allow_internet": True}}, "no network"),
        ({"environment": {"os": "windows"}}, "Linux"),
        ({"environment": {"gpus": 1}}, "GPUs"),
        ({"environment": {"docker_image": "x"}}, "docker_image"),
        ({"agent": {"user": "root"}}, "agent.user"),
        ({"verifier": {"collect": [{"command": "x", "service": "db"}]}}, "service=db"),
        ({"artifacts": [{"source": "/x", "service": "db"}]}, "service=db"),
        ({"steps": [{"name": "one", "verifier": {"user": "root"}}]}, r"steps[0]: verifier.user"),
    ],
)
def test_what_sandboxes_do_not_offer(settings, reason):
    assert reason in unplayable(settings)


def test_sizes():
    assert megabytes({"memory": "2G"}, "memory", 1) == 2048 and megabytes({"memory": "1536K"}, "memory", 1) == 1
    assert megabytes({"storage_mb": 7}, "storage", 1) == 7 and megabytes({}, "memory", 5) == 5


def test_folders_that_are_refused(folder, tmp_path):
    def refused(reason):
        with pytest.raises(DataError, match=reason) as error:
            read_task(folder)
        assert "\n" not in str(error.value)

    (folder / "tests/linked").symlink_to("/etc/passwd")
    refused("linked is a link")
    (folder / "tests/linked").unlink()
    os.mkfifo(folder / "solution/pipe")
    refused("pipe is a special file")
    (folder / "solution/pipe").unlink()
    (folder / "surplus").write_text("")
    refused("surplus: a task has")
    (folder / "surplus").unlink()
    (folder / "instruction.md").write_bytes(b"\xff")
    refused("no UTF-8")
    (folder / "instruction.md").write_text("  \n")
    refused("is empty")
    (folder / "instruction.md").write_text("Do it.")
    (folder / "tests/test.sh").unlink()
    refused("tests/test.sh is missing")
    with pytest.raises(DataError, match="is no folder"):
        read_task(tmp_path / "nowhere")


def test_steps(tmp_path):
    steps = [{"name": "one", "verifier": {"timeout_sec": 5.0}, "artifacts": ["/b"]}, {"name": "two", "min_reward": 0.5}]
    settings = {"schema_version": "1.4", "artifacts": ["/a"], "verifier": {"env": {"A": "b"}}, "steps": steps}
    first = HarborStep("one", "First.", {"test.sh": b"#!/bin/sh\n"}, {"solve.sh": b"#!/bin/sh\n"})
    second = HarborStep("two", "Then.", {"more": b"x"})
    shared = {"test.sh": b"#!/bin/sh\ntrue\n"}
    task = HarborTask("t", "", {"Dockerfile": b"FROM x\n"}, shared, {}, settings, (first, second))
    write_task(task, tmp_path / "t")
    assert read_task(tmp_path / "t") == task and not (tmp_path / "t/instruction.md").exists()
    one, two = task.parts()
    assert (one.name, one.instruction, one.tests) == ("t/one", "First.", first.tests)
    assert one.settings["verifier"] == {"env": {"A": "b"}, "timeout_sec": 5.0}
    assert (one.settings["artifacts"], two.settings["artifacts"]) == (["/a", "/b"], ["/a"])
    assert two.tests == {**shared, "more": b"x"} and one.digest == two.digest == task.digest
    (tmp_path / "t/steps/three").mkdir()
    with pytest.raises(DataError, match=r"step 'three' is missing in task\.toml"):
        read_task(tmp_path / "t")
    (tmp_path / "t/steps/three").rename(tmp_path / "t/steps/two/tests/deeper")
    (tmp_path / "t/steps/one/instruction.md").unlink()
    with pytest.raises(DataError, match=r"one/instruction\.md is missing"):
        read_task(tmp_path / "t")


DOCKERFILE = r"""# a comment
FROM python:3.12
ENV NAME=value OTHER="two words"
ENV OLD form of it
RUN apt-get update && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git=1:2.3 make && \
    rm -rf /var/lib/apt/lists/* && echo "a && b" > note
WORKDIR /srv/$NAME
COPY data ./data/
RUN pip install --no-cache-dir requests==2.0 flask && make all
RUN ["make", "more"]
"""


def test_a_dockerfile():
    recipe = read_dockerfile(DOCKERFILE, "here")
    assert recipe.workdir == "/srv/value"
    assert recipe.env == {"NAME": "value", "OTHER": "two words", "OLD": "form of it"}
    assert [(step.line, step.kind, step.words) for step in recipe.steps] == [
        (5, "apt", ("git", "make")),
        (5, "run", ("/bin/sh", "-c", 'echo "a && b" > note')),
        (9, "copy", ("data", "./data/")),
        (10, "pip", ("requests==2.0", "flask")),
        (10, "run", ("/bin/sh", "-c", "make all")),
        (11, "run", ("make", "more")),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("RUN true", "here: FROM is missing"),
        ("FROM a\nFROM b", "here:2: FROM"),
        ("FROM a\nUSER root", "here:2: USER: not offered"),
        ("FROM a\nENTRYPOINT x", "here:2: ENTRYPOINT"),
        ("FROM a\nARG x=1", "here:2: ARG"),
        ("FROM a\n\nCOPY --from=b x y", "here:3: COPY --from=b"),
        ("FROM a\nCOPY x", "here:2: COPY: must name"),
        ("FROM a\nRUN npm install x", "here:2: RUN npm"),
        ("FROM a\nRUN pip install -r requirements.txt", "here:2: RUN pip install -r"),
        ("FROM a\nRUN apt-get remove git", "here:2: RUN apt-get remove git"),
        ("FROM a\nRUN --mount=type=cache true", "here:2: RUN --mount"),
        ("FROM a\nRUN <<EOF", "here:2: RUN <<"),
        ("FROM a\nRUN [oops", "here:2: .*JSON"),
        ("FROM a\nENV 1x=2", "here:2: ENV"),
        ("FROM a\nRUN apt-get install 'x", "here:2"),
        ("FROM a\nRUN true \\", "here:2: the last line is continued"),
    ],
)
def test_dockerfiles_that_are_refused(text, reason):
    with pytest.raises(DataError, match=reason) as error:
        for step in read_dockerfile(text, "here").steps:
            assert step.kind != "npm"
    assert "\n" not in str(error.value)


def test_copies():
    files = {"Dockerfile": b"", "data/a": b"1", "data/b/c": b"2", "one.txt": b"3", "two.txt": b"4"}

    def places(line):
        (step,) = read_dockerfile(f"FROM x\nWORKDIR /app\nCOPY {line}", "here").steps
        return {str(path): data for path, data in copied(step, files, "here").items()}

    assert places("data .") == {"/app/a": b"1", "/app/b/c": b"2"}
    assert places("one.txt renamed") == {"/app/renamed": b"3"}
    assert places("*.txt /opt/") == {"/opt/one.txt": b"3", "/opt/two.txt": b"4"}
    assert set(places(". /app")) == {f"/app/{name}" for name in files}
    for line in ("none .", "one.txt ../up", "one.txt /tests/x", "one.txt /tmp/x"):
        with pytest.raises(DataError, match=r"^here:3: COPY"):
            places(line)

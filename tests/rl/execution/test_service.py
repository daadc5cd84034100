"""The service over scripted sandboxes, and over real ones whose processes are killed."""

import asyncio
import itertools
import subprocess
import sys
import time

import pytest

from arcforge_core.contracts.sandbox import (
    Command,
    CommandStatus,
    ExecResult,
    SandboxError,
    SandboxFault,
    SandboxLimits,
)
from arcforge_core.errors import ArcforgeError
from arcforge_rl.execution.jobs import ExecutionJob
from arcforge_rl.execution.queue import JobQueue
from arcforge_rl.execution.service import ExecutionService


class ToldSandbox:
    """Acts by the first word of a command; notes what was begun, in order."""

    def __init__(self, backend):
        self.backend, self.files = backend, {}

    async def prepare(self):
        pass

    async def write(self, path, data):
        self.files[path] = data

    async def exec(self, command):
        self.backend.begun.append(command.argv[-1])
        self.backend.now += 1
        self.backend.most = max(self.backend.most, self.backend.now)
        try:
            while not self.backend.may_end():
                await asyncio.sleep(0)
            return self.act(command)
        finally:
            self.backend.now -= 1

    def act(self, command):
        if command.argv[0] == "fault" and self.backend.begun.count(command.argv[-1]) < int(command.argv[1]):
            raise SandboxFault("the sandbox broke")
        if command.argv[0] == "malformed":
            raise SandboxError("argv: no such thing")
        if command.argv[0] == "bug":
            raise ZeroDivisionError("ours")
        code = 1 if command.argv[0] == "false" else 0
        return ExecResult(CommandStatus.EXIT, code, self.files.get("input", b""), b"", 0.0)

    async def stop(self):
        self.backend.stopped += 1


class ToldBackend:
    """Its commands end when `may_end()`."""

    limits = SandboxLimits()

    def __init__(self, may_end=lambda: True):
        self.begun, self.opened, self.stopped, self.now, self.most, self.bases = [], 0, 0, 0, 0, []
        self.may_end = may_end

    async def open(self, base=None, limits=None, forward=None):
        self.opened += 1
        self.bases.append(base)
        return ToldSandbox(self)


def job(id, *argv, **options):
    return ExecutionJob(id, Command((*(argv or ("true",)), id)), **options)


def work_off(tmp_path, jobs, backend=None, **options):
    """Runs jobs to the end and returns the results by id."""
    backend = backend or ToldBackend()

    async def scene():
        async with ExecutionService(backend, tmp_path / "queue.db", **options) as service:
            service.submit(jobs)
            return [result async for result in service.results()]

    results = asyncio.run(asyncio.wait_for(scene(), 30))
    assert len({result.id for result in results}) == len(results)
    assert backend.opened == backend.stopped
    return {result.id: result for result in results}


def test_every_job_gets_its_result(tmp_path):
    results = work_off(tmp_path, [job(f"j{n}", "false" if n % 3 == 0 else "true") for n in range(100)])
    assert {id: result.result.code for id, result in results.items()} == {f"j{n}": int(n % 3 == 0) for n in range(100)}


def test_higher_priorities_first_then_in_order(tmp_path):
    backend = ToldBackend()
    work_off(
        tmp_path, [job("a"), job("b", priority=1), job("c", priority=5), job("d", priority=1)], backend, concurrency=1
    )
    assert backend.begun == ["c", "b", "d", "a"]


def test_a_programs_own_failure_is_not_tried_again(tmp_path):
    backend = ToldBackend()
    results = work_off(tmp_path, [job("j", "false")], backend)
    assert backend.begun == ["j"] and results["j"].attempts == 1


def test_faults_of_the_sandbox_are_tried_again(tmp_path):
    backend = ToldBackend()
    results = work_off(tmp_path, [job("twice", "fault", "2"), job("always", "fault", "99")], backend, attempts=3)
    assert results["twice"].result.code == 0 and results["twice"].attempts == 2
    assert results["always"].result is None and "failed 3 times: the sandbox broke" in results["always"].error
    assert backend.begun.count("always") == 3


@pytest.mark.parametrize(("word", "reason"), [("malformed", "no such thing"), ("bug", "ZeroDivisionError: ours")])
def test_what_cannot_be_run_says_why_and_stops_nobody(tmp_path, word, reason):
    backend = ToldBackend()
    results = work_off(tmp_path, [job("bad", word), job("good")], backend)
    assert results["bad"].result is None and reason in results["bad"].error
    assert results["good"].result.ok and backend.begun.count("bad") == 1


def test_so_many_at_a_time(tmp_path):
    asked = itertools.count()  # commands then run for 1000 rounds more, in which a fourth one would begin
    backend = ToldBackend(lambda: backend.most >= 3 and next(asked) > 1000)
    work_off(tmp_path, [job(f"j{n}") for n in range(20)], backend, concurrency=3)
    assert backend.most == 3


def test_files_and_base_reach_the_sandbox(tmp_path):
    backend = ToldBackend()
    results = work_off(tmp_path, [job("f", files={"input": b"\0data"}), job("b", base=str(tmp_path))], backend)
    assert results["f"].result.stdout == b"\0data"
    assert backend.bases.count(tmp_path) == 1


def test_submitting_again_changes_nothing(tmp_path):
    async def scene():
        async with ExecutionService(ToldBackend(), tmp_path / "queue.db") as service:
            assert service.submit([job("a"), job("b")]) == 2
            assert [result async for result in service.results()]
            assert service.submit([job("a"), job("c")]) == 1
            with pytest.raises(ArcforgeError, match="'b' is already known with other content"):
                service.submit([job("d"), job("b", "false")])
            return [result.id async for result in service.results()]

    assert sorted(asyncio.run(scene())) == ["a", "b", "c"]


def test_results_are_streamed_and_go_on_after_a_number(tmp_path):
    async def scene():
        seen = []
        backend = ToldBackend(lambda: seen or backend.begun == ["j0"])
        async with ExecutionService(backend, tmp_path / "queue.db", concurrency=1) as service:
            service.submit([job(f"j{n}") for n in range(5)])
            async for result in service.results():
                seen.append((result.id, service.progress()["done"]))
                if len(seen) == 2:
                    break
            rest = [r.id async for r in service.results(after=result.number)]
            return seen, rest, service.progress()

    seen, rest, progress = asyncio.run(asyncio.wait_for(scene(), 30))
    assert seen[0] == ("j0", 1), "the first result came when others were not done"
    assert [id for id, _ in seen] + rest == [f"j{n}" for n in range(5)]
    assert progress == {"queued": 0, "running": 0, "done": 5}


def test_cancelling(tmp_path):
    async def scene():
        backend = ToldBackend(lambda: backend.begun[-1] == "kept")
        async with ExecutionService(backend, tmp_path / "queue.db", concurrency=1) as service:
            service.submit([job("running"), job("waiting"), job("kept")])
            while not backend.now:
                await asyncio.sleep(0)
            answers = [await service.cancel(id) for id in ("running", "waiting", "unknown")]
            results = {r.id: r async for r in service.results()}
            return answers, results, await service.cancel("kept"), backend

    answers, results, late, backend = asyncio.run(asyncio.wait_for(scene(), 30))
    assert answers == [True, True, False] and late is False
    assert results["running"].error == results["waiting"].error == "cancelled"
    assert results["kept"].result.ok and "waiting" not in backend.begun
    assert backend.opened == backend.stopped


def test_closing_leaves_the_rest_for_the_next_life(tmp_path):
    async def first():
        backend = ToldBackend(lambda: False)
        async with ExecutionService(backend, tmp_path / "queue.db", concurrency=2) as service:
            service.submit([job(f"j{n}") for n in range(4)])
            while backend.now < 2:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(first(), 30))
    results = work_off(tmp_path, [])
    assert sorted(results) == [f"j{n}" for n in range(4)]
    assert sorted(result.attempts for result in results.values()) == [1, 1, 2, 2]


def test_one_service_for_a_queue(tmp_path):
    queue = JobQueue(tmp_path / "queue.db")
    with pytest.raises(ArcforgeError, match="another execution service"):
        JobQueue(tmp_path / "queue.db")
    queue.close()
    JobQueue(tmp_path / "queue.db").close()


def test_a_second_result_is_not_written(tmp_path):
    queue = JobQueue(tmp_path / "queue.db")
    queue.submit([job("j")])
    queue.claim(1)
    assert queue.finish("j", None, "first") and not queue.finish("j", None, "second")
    queue.put_back("j")
    assert queue.claim(1) == [] and [r.error for r in queue.results()] == ["first"]
    queue.close()


def test_a_job_comes_back_from_the_file_as_it_was(tmp_path):
    limits = SandboxLimits(wall_seconds=1.5, disk_bytes=7)
    whole = ExecutionJob(
        "j", Command(["a", "é"], b"\xff\0", {"K": "v"}, "/workspace/d", limits), {"f": b"\xfe"}, "/base", 3
    )
    queue = JobQueue(tmp_path / "queue.db")
    queue.submit([whole])
    assert queue.claim(5) == [whole]
    queue.close()


SERVICE = """
import asyncio, sys
from pathlib import Path
from arcforge_core.contracts.sandbox import Command
from arcforge_rl.configs.commands import BubblewrapConfig
from arcforge_rl.execution.jobs import ExecutionJob
from arcforge_rl.execution.service import ExecutionService
from arcforge_rl.sandbox.bubblewrap import Bubblewrap

async def main():
    async with Bubblewrap(BubblewrapConfig()) as backend, ExecutionService(backend, Path(sys.argv[1])) as service:
        service.submit(ExecutionJob(f"j{n}", Command(("/bin/echo", str(n)))) for n in range(int(sys.argv[2])))
        print("submitted", flush=True)
        async for result in service.results():
            pass

asyncio.run(main())
"""


def start_service(path, jobs):
    return subprocess.Popen([sys.executable, "-c", SERVICE, str(path), str(jobs)], stdout=subprocess.PIPE)


@pytest.mark.nightly(reason="a thousand sandboxes")
@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_a_thousand_jobs_survive_kill_9(tmp_path):
    path, jobs, lives = tmp_path / "queue.db", 1000, 0
    for pause in (0.2, 1.0, 2.0):
        process = start_service(path, jobs)
        assert process.stdout.readline() == b"submitted\n"
        time.sleep(pause)
        process.kill()
        process.wait()
        process.stdout.close()
        lives += 1
    process = start_service(path, jobs)
    assert process.wait(timeout=200) == 0
    process.stdout.close()
    queue = JobQueue(path)
    results = [result for number in range(0, jobs, 1000) for result in queue.results(after=number)]
    assert queue.progress() == {"queued": 0, "running": 0, "done": jobs}
    queue.close()
    assert sorted(r.id for r in results) == sorted(f"j{n}" for n in range(jobs))
    assert all(r.result.ok and r.result.stdout == b"%d\n" % int(r.id[1:]) for r in results)
    again = [r for r in results if r.attempts > 1]
    assert 0 < len(again) <= 2 * lives, (
        "jobs that were running when the service was killed, and no others, were begun again"
    )

"""Runs pytest inside a sandbox and reports each test; it is a program there, not imported here.

``python3 -I inside.py``, with a JSON object on standard input: ``key``, ``paths``, ``sys_path``, ``first``, ``seed``,
``explained``. pytest is imported before anything of the repository. Results go to the standard output that the process
was started with, one line each, signed with the key; the repository's own output goes nowhere.
"""

import hashlib
import hmac
import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    given = json.loads(sys.stdin.read())
    channel = os.dup(1)
    null, said = os.open(os.devnull, os.O_RDWR), os.memfd_create("stderr")
    for descriptor, target in enumerate((null, null, said)):
        os.dup2(target, descriptor)
    sys.path[:0] = given["first"]
    for name in ("_pytest.reports", "_pytest.runner"):
        importlib.import_module(name)
    pytest: Any = importlib.import_module("pytest")  # that of the layer

    sys.dont_write_bytecode = True
    key, seed, number = given["key"].encode(), given["seed"], [0]
    write, dumps, digest, new = os.write, json.dumps, hashlib.sha256, hmac.new

    def send(**event: Any) -> None:
        event["number"] = number[0]
        number[0] += 1
        text = dumps(event).encode()
        write(channel, new(key, text, digest).hexdigest().encode() + b" " + text + b"\n")

    class Reporter:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            if seed:
                items.sort(key=lambda item: digest(f"{seed} {item.nodeid}".encode()).digest())

        def pytest_collection_finish(self, session: Any) -> None:
            send(collected=[item.nodeid for item in session.items])

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                send(uncollected=report.nodeid, text=str(report.longrepr)[-2000:])

        def pytest_runtest_logreport(self, report: Any) -> None:
            if hasattr(report, "context") and report.outcome != "failed":
                return  # a part of a test (subTest); the test reports for itself, and a failed part as well
            if report.when == "call" or report.outcome != "passed":
                xfail = hasattr(report, "wasxfail")
                send(
                    test=report.nodeid,
                    when=report.when,
                    outcome="skipped" if xfail else report.outcome,
                    text=str(report.longrepr)[-2000:] if report.failed else "",
                )

    sys.path[len(given["first"]) : len(given["first"])] = given["sys_path"]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly", "--continue-on-collection-errors"]
    options += [] if given["explained"] else ["--tb=no"]
    try:
        code = pytest.main([*options, *given["paths"]], plugins=[Reporter()])
    except Exception as error:
        broken = f"{type(error).__name__}: {error}"
    else:
        broken = ""
        if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
            broken = os.pread(said, 1 << 20, 0).decode(errors="replace").strip() or f"pytest ended with {int(code)}"
    if broken:
        send(broke=broken[-2000:])
    else:
        send(end=int(code))
    os._exit(0)


main()

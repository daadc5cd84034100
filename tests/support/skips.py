"""A pytest plugin: a skipped test fails unless its reason is known here.

With ``--all-packages``, which `make test` sets, a package that the requirements install may not be missing either, nor
a browser, unless ``--without-browser`` is given.
"""

import re

import pytest

MACHINE = (
    r"no CUDA device|needs a CUDA device|a GPU computes it rightly",
    r"the flags are of processors with AVX2|the processor does not multiply pairs",
    r"this processor cannot run it|this compiler knows no .*",
    r"runs the page's functions in node",
    r"no C\+\+ compiler: .*|needs Linux and a C compiler|no kernels here",
    r"these sandboxes are Linux's|bubblewrap is Linux's|memory is bounded on Linux|proc\(5\)|needs a POSIX pipe",
    r"needs glibc|root writes everywhere|only root mounts a small disk",
    r"this run is an ordinary user's already, and cannot become another's",
    r"no .*: the kernel's headers are not installed|this process may not open so many files",
    r"(npm|node) is not installed|\S+ cannot be fetched by (npm|pip): .*|harbor cannot be installed: .*",
    r"there is no (systemd-analyze|hadolint|nginx|patch)|needs sha256sum|(gzip|xz|zstd|bzip2|cmake) is not installed",
    r"a toolchain cannot be fetched: .*|triton \S+ cannot be fetched: .*|triton is not installed",
    r"got empty parameter set for \(op\)",  # a backend without kernels here: no Triton
    r"environment(\.level)?=.*needs Chromium: layer .*",
    r"(acme_npu|cuda|docker|bubblewrap|landlock): .*",
)
"""What a machine lacks."""
BROWSER = re.compile(r"CHROMIUM=.*no such program.*")
"""`make test` brings one; ``--without-browser`` says that there cannot be one."""
BY_DESIGN = (r"the template rejects it: .*",)
"""Cases of a suite that a component may refuse."""
MISSING = re.compile(
    r"could not import '([\w.]+)'.*|needs (arcforge-attention)|(playwright) is not installed", re.DOTALL
)
"""What `pytest.importorskip` says, and our own words for it."""
OPTIONAL = ("fla", "renderers")
"""Packages that tests compare with and no requirement installs."""


def pytest_addoption(parser):
    parser.addoption("--all-packages", action="store_true", help="a missing package of the requirements is a failure")
    parser.addoption("--without-browser", action="store_true", help="tests of the pages may be skipped")


def complaint(reason: str, all_packages: bool, browser: bool = True) -> str:
    """Returns why a test may not be skipped for this reason; empty if it may.

    Args:
        reason: of the skip.
        all_packages: whether packages of the requirements, and a browser, have to be there.
        browser: False if this machine can have none.
    """
    if BROWSER.fullmatch(reason):
        return "scripts/setup_browser.sh brings one, or give --without-browser" if all_packages and browser else ""
    if missing := MISSING.fullmatch(reason):
        package = next(filter(None, missing.groups())).partition(".")[0]
        return f"{package} is not installed, and is required" if all_packages and package not in OPTIONAL else ""
    known = any(re.fullmatch(pattern, reason, re.DOTALL) for pattern in (*MACHINE, *BY_DESIGN))
    return "" if known else "this reason is not listed in tests/support/skips.py"


def judge(report, all_packages: bool, browser: bool = True):
    """Makes a failure of a report that is skipped without a known reason."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if why := complaint(reason, all_packages, browser):
        report.outcome = "failed"
        report.longrepr = f"skipped: {reason}: {why}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    judge(report, item.config.getoption("all_packages"), not item.config.getoption("without_browser"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    judge(report, collector.config.getoption("all_packages"), not collector.config.getoption("without_browser"))
    return report

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.skips import complaint

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_unknown():
    pytest.skip("I had no time")

@pytest.mark.skip
def test_without_reason(): ...

def test_known():
    pytest.skip("no CUDA device")

@pytest.mark.xfail(reason="expected")
def test_expected():
    assert False

def test_required():
    pytest.importorskip("no_such_package.part")
"""


def run(folder, *options):
    """Returns what pytest says of a folder's tests, with this plugin only."""
    command = [sys.executable, "-m", "pytest", "-p", "support.skips", "-p", "no:cacheprovider", "-q", *options]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("all_packages", [False, True])
def test_only_known_reasons_pass(tmp_path, all_packages):
    (tmp_path / "test_it.py").write_text(TESTS)
    out = run(tmp_path, *["--all-packages"] * all_packages)
    for reason in ("I had no time", "unconditional skip"):
        assert f"skipped: {reason}: this reason is not listed in tests/support/skips.py" in out
    assert ("no_such_package is not installed, and is required" in out) == all_packages
    counts = "2 failed, 1 skipped, 1 xfailed, 1 error" if all_packages else "1 failed, 2 skipped, 1 xfailed, 1 error"
    assert counts in out


def test_a_module_that_needs_a_missing_package_is_not_passed_over(tmp_path):
    (tmp_path / "test_it.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    out = run(tmp_path, "--all-packages")
    assert "no_such_package is not installed, and is required" in out and "1 error" in out


@pytest.mark.parametrize(
    ("options", "outcome"),
    [((), "1 skipped"), (("--all-packages",), "1 failed"), (("--all-packages", "--without-browser"), "1 skipped")],
)
def test_a_missing_browser_is_a_failure_where_everything_is_installed(tmp_path, options, outcome):
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom arcforge_core.errors import ConfigError\nfrom support.browsing import find_chromium\n"
        "def test_page(monkeypatch):\n    monkeypatch.setenv('CHROMIUM', '/nowhere/chromium')\n"
        "    try:\n        find_chromium()\n    except ConfigError as error:\n        pytest.skip(str(error))\n"
    )
    assert outcome in run(tmp_path, *options)


def test_the_makefile_brings_a_browser_unless_told_that_there_is_none():
    def plan(*words):
        ran = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return ran.stdout

    assert "setup_browser.sh" in plan("test-only") and "setup_browser.sh" in plan("nightly")
    assert "setup_browser.sh" not in plan("test-only", "ARGS=--without-browser")
    assert "setup_browser.sh" not in plan("run") + plan("demo")


def test_a_package_that_no_requirement_installs_may_be_missing():
    assert complaint("could not import 'fla': No module named 'fla'", all_packages=True) == ""
    assert (
        complaint("needs arcforge-attention", all_packages=True)
        == "arcforge-attention is not installed, and is required"
    )


def constant_reasons(text):
    """Yields the constant reasons of `pytest.skip` and `skipif` in a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("skip", "skipif"):
            values = [*(node.args[:1] if node.func.attr == "skip" else []), *(k.value for k in node.keywords)]
            yield from (value.value for value in values if isinstance(value, ast.Constant))


def test_every_constant_reason_of_the_tree_is_listed():
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "packages").glob("*/src/**/testing/*.py")]
    texts = (file.read_text(encoding="utf-8") for file in files)
    reasons = {reason for text in texts if "skip" in text for reason in constant_reasons(text)}
    assert len(reasons) > 15
    assert {reason: complaint(reason, all_packages=False) for reason in reasons if complaint(reason, False)} == {}

"""The tutorial's first command writes a package, its blocks fill it in: it passes, and fails where the page says so."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial_chip_plugin.md"
EXAMPLE = ROOT / "examples" / "plugins" / "acme_npu" / "src" / "acme_arcforge_npu"
PACKAGE = "src/acme_npu_arcforge"
FILLED_IN = (f"{PACKAGE}/kernels.py", f"{PACKAGE}/backend.py", "tests/test_conformance.py")
"""Files that the page changes; it shows the others as they were written."""


def commands(pages):
    """Returns the page's blocks of commands, in order; the first one writes the package."""
    return [b.text for b in pages[PAGE] if b.language == "bash" and not b.needs]


@pytest.fixture(scope="module")
def written(pages, tmp_path_factory):
    """The package as the page's first commands write it."""
    parent = tmp_path_factory.mktemp("tutorial")
    result = run(parent, commands(pages)[0])
    assert result.returncode == 0, result.stderr
    return parent / "acme-npu-arcforge"


@pytest.fixture(scope="module")
def folder(pages, written, tmp_path_factory):
    """The package with the files that the page changes, and the wheel that it makes, unpacked into ``installed``."""
    folder = tmp_path_factory.mktemp("acme_npu") / written.name
    shutil.copytree(written, folder)
    for name in FILLED_IN:
        [text] = [b.text for b in pages[PAGE] if b.title == name]
        (folder / name).write_text(text)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=folder, check=True, capture_output=True
    )
    [wheel] = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder


def run(folder, script):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(folder / "installed"), "OMP_NUM_THREADS": "1"}
    command = ["bash", "-euo", "pipefail", "-c", f"pip() {{ true; }}\n{script}"]  # it is installed already
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def test_the_files_are_those_of_the_list_and_as_shown(pages, written):
    tree = next(b.text for b in pages[PAGE] if b.language == "text" and b.text.startswith("acme-npu-arcforge/"))
    listed = {line.split()[0] for line in tree.splitlines()[1:]}
    assert listed == {str(file.relative_to(written)) for file in written.rglob("*") if file.is_file()}
    shown = {b.title: b.text for b in pages[PAGE] if b.title}
    assert set(FILLED_IN) < set(shown) <= listed
    for name in set(shown) - set(FILLED_IN):
        assert shown[name] == (written / name).read_text(), name


def test_filling_in_adds_to_what_was_written(pages, written):
    """The changed files keep every function that they had, and the marks of what only the vendor knows."""
    shown = {b.title: b.text for b in pages[PAGE] if b.title}
    for name in FILLED_IN:
        before, after = (written / name).read_text(), shown[name]
        names = [set(re.findall(r"(?:def|class) (\w+)", text)) for text in (before, after)]
        assert names[0] <= names[1], name
        assert before != after, name


@pytest.mark.nightly(reason="installs a package and runs conformance suites")
def test_its_commands_run_and_show_what_it_says(pages, folder):
    result = run(folder, "".join(commands(pages)[1:]))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "acme-npu-arcforge 0.1.0" in result.stdout
    assert "name: acme_npu" in result.stdout
    verdicts = [line.split()[:3] + line.split()[5:6] for line in result.stdout.splitlines() if " acme_npu." in line]
    for op in ("rms_norm", "swiglu"):
        assert [op, f"acme_npu.{op}", "float32", "pass"] in verdicts
        assert [op, f"acme_npu.{op}", "bfloat16", "declined:"] in verdicts
    assert " passed" in result.stdout


@pytest.mark.slow(reason="imports torch in a fresh process")
def test_the_broken_kernel_is_named(pages, folder):
    kernels = folder / "installed" / "acme_npu_arcforge" / "kernels.py"
    right = kernels.read_text()
    assert right.count("(1 + gate") == 1, "the page asks to take this out"
    kernels.write_text(right.replace("(1 + gate", "(gate"))
    try:
        result = run(folder, "arcforge-conformance hardware=acme_npu")
    finally:
        kernels.write_text(right)
    last = next(b.text for b in pages[PAGE] if b.text.startswith("failed:"))
    assert result.returncode == 2
    assert result.stdout.splitlines()[-1] == last.strip()


def test_it_teaches_what_the_example_does(folder):
    """Functions and classes of the page's kernels are those of the finished example."""

    def definitions(file):
        return {
            d.name: ast.dump(d)
            for d in ast.parse(file.read_text()).body
            if isinstance(d, ast.FunctionDef | ast.ClassDef)
        }

    taught, finished = definitions(folder / PACKAGE / "kernels.py"), definitions(EXAMPLE / "kernels.py")
    assert taught
    assert {name: finished.get(name) for name in taught} == taught

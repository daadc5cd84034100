"""The tutorial's package is built from its blocks: it installs, shows up, passes, and fails where the page says so."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial_chip_plugin.md"
EXAMPLE = ROOT / "examples" / "plugins" / "acme_npu"
PACKAGE = "src/acme_arcforge_npu"


@pytest.fixture(scope="module")
def folder(pages, tmp_path_factory):
    """The files as the page gives them, and the wheel that they make, unpacked into ``installed``."""
    folder = tmp_path_factory.mktemp("acme_npu")
    files = {b.title: b.text for b in pages[PAGE] if b.title}
    for name, text in {f"{PACKAGE}/__init__.py": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
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


def test_the_files_are_those_of_the_list(pages, folder):
    tree = next(b.text for b in pages[PAGE] if b.language == "text" and b.text.startswith("acme_npu/"))
    listed = {line.split()[0] for line in tree.splitlines()[1:]}
    assert listed == {f"{PACKAGE}/__init__.py", *(b.title for b in pages[PAGE] if b.title)}


@pytest.mark.nightly(reason="installs a package and runs conformance suites")
def test_its_commands_run_and_show_what_it_says(pages, folder):
    script = "".join(b.text for b in pages[PAGE] if b.language == "bash" and not b.needs)
    result = run(folder, script)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "acme-arcforge-npu 0.1.0" in result.stdout
    assert "name: acme_npu" in result.stdout
    verdicts = [line.split()[:3] + line.split()[5:6] for line in result.stdout.splitlines() if " acme_npu." in line]
    for op in ("rms_norm", "swiglu"):
        assert [op, f"acme_npu.{op}", "float32", "ok"] in verdicts
        assert [op, f"acme_npu.{op}", "bfloat16", "declined:"] in verdicts
    assert " passed" in result.stdout


@pytest.mark.slow(reason="imports torch in a fresh process")
def test_the_broken_kernel_is_named(pages, folder, tmp_path):
    kernels = folder / "installed" / "acme_arcforge_npu" / "kernels.py"
    right = kernels.read_text()
    assert right.count("(1 + gate") == 1, "the page asks to take this out"
    kernels.write_text(right.replace("(1 + gate", "(gate"))
    try:
        result = run(folder, "ACME_NPU_SIMULATE=1 arcforge-conformance hardware=acme_npu")
    finally:
        kernels.write_text(right)
    last = next(b.text for b in pages[PAGE] if b.text.startswith("failed:"))
    assert result.returncode == 2
    assert result.stdout.splitlines()[-1] == last.strip()


@pytest.mark.parametrize("module", ["plugin.py", "kernels.py"])
def test_it_teaches_what_the_example_does(folder, module):
    """Functions and classes of the page are those of the finished example."""

    def definitions(file):
        return {
            d.name: ast.dump(d)
            for d in ast.parse(file.read_text()).body
            if isinstance(d, ast.FunctionDef | ast.ClassDef)
        }

    taught = definitions(folder / PACKAGE / module)
    finished = definitions(EXAMPLE / PACKAGE / module)
    assert taught
    assert {name: finished.get(name) for name in taught} == taught

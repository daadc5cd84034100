"""A written chip package installs and passes as it is; bad names, taken ones and existing folders leave nothing."""

import errno
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from arcforge_core import __version__
from arcforge_core.cli import new_plugin as cli
from arcforge_core.cli.plugins import main
from arcforge_core.plugins.hookspecs import PLUGIN_API


def new(*arguments):
    return main(["new", *arguments])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_package_pins_core_for_two_minor_versions_and_never_torch(here, capsys):
    assert new("hardware", "acme") == 0
    assert (
        "acme-arcforge: pip install -e acme-arcforge, then arcforge-conformance hardware=acme"
        in capsys.readouterr().out
    )
    project = tomllib.loads((here / "acme-arcforge" / "pyproject.toml").read_text())["project"]
    [requirement] = map(Requirement, project["dependencies"])
    major, minor = map(int, __version__.split(".")[:2])
    assert requirement.name == "arcforge-core" and requirement.specifier.contains(__version__)
    assert requirement.specifier.contains(f"{major}.{minor + 1}.9")
    assert not requirement.specifier.contains(f"{major}.{minor + 2}.0")
    assert project["entry-points"]["arcforge.plugins"] == {"acme-arcforge": "acme_arcforge.plugin"}
    assert f"return {PLUGIN_API}\n" in (here / "acme-arcforge/src/acme_arcforge/plugin.py").read_text()


def test_no_name_of_the_template_is_left_and_the_vendor_s_part_is_marked(here):
    new("hardware", "acme_npu", "--folder", "plugins/ours")
    files = {file: file.read_text() for file in (here / "plugins/ours/acme-npu-arcforge").rglob("*") if file.is_file()}
    assert len(files) == 8
    for file, text in files.items():
        assert "$" not in text.replace("${", "$") and "PACKAGE" not in str(file)
        if file.suffix == ".py":
            compile(text, str(file), "exec")
    marked = {file.name for file, text in files.items() if "FILL IN: " in text}
    assert marked == {"backend.py", "kernels.py", "configs.py"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("hardware", "Acme"), "name='Acme': must be a snake_case name such as acme_npu"),
        (("hardware", "acme-npu"), "name='acme-npu': must be a snake_case name"),
        (("hardware", "3d"), "name='3d': must be"),
        (("hardware", "a__b"), "name='a__b': must be"),
        (("hardware", "../acme"), "name='../acme': must be"),
        (("hardware", "true"), "name='true': must be"),
        (("hardware", "cpu"), "name='cpu': hardware=cpu is a component of arcforge-hw"),
        (("hardware", "muxi"), "name='muxi': hardware=muxi is a preset of arcforge-hw"),
        (("hardware", "a" * 41), "with 40 characters at most"),
        (("attention", "acme"), "kind='attention': must be one of hardware"),
        (("hardware",), "the following arguments are required: name"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(here, capsys, arguments, says):
    assert new(*arguments) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert list(here.iterdir()) == []


def test_an_installed_package_s_name_is_refused(here, capsys, monkeypatch):
    class Installed:
        name, version = "acme-arcforge", "3.0"

    monkeypatch.setattr(cli, "distribution", lambda name: Installed)
    assert new("hardware", "acme") == 2
    assert "name='acme': acme-arcforge 3.0 is installed" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["folder", "file", "dangling link"])
def test_what_exists_is_not_overwritten(here, capsys, what):
    target = here / "acme-arcforge"
    {
        "folder": target.mkdir,
        "file": target.touch,
        "dangling link": lambda: target.symlink_to(here / "nowhere"),
    }[what]()
    assert new("hardware", "acme") == 2
    assert "it exists, and is not overwritten" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["acme-arcforge"]
    assert not target.is_dir() or list(target.iterdir()) == []


def test_a_full_disk_leaves_nothing(here, capsys, monkeypatch):
    plain, written = Path.write_text, []

    def fills_up(self, text, **options):
        if "acme" in str(self) and len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        written.append(self)
        return plain(self, text, **options)

    monkeypatch.setattr(Path, "write_text", fills_up)
    assert new("hardware", "acme") == 2
    assert "folder='acme-arcforge': it cannot be written: No space left on device" in capsys.readouterr().err
    assert len(written) == 3 and list(here.iterdir()) == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package ``acme-arcforge``, and variables with which our commands find it installed."""
    folder = tmp_path_factory.mktemp("installed")
    assert new("hardware", "acme", "--folder", str(folder)) == 0
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", "site"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "./acme-arcforge"], cwd=folder, check=True)
    return folder, {**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"}


def conformance(installed, *arguments):
    command = [Path(sys.executable).parent / "arcforge-conformance", "hardware=acme", *arguments]
    return subprocess.run(command, env=installed[1], capture_output=True, text=True, check=False)


@pytest.mark.slow(reason="installs the package and runs its conformance in a fresh process")
def test_the_package_installs_without_dependencies_and_passes_as_written(installed):
    result = conformance(installed, "--quick")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert any(row[:3] == ["rms_norm", "acme.rms_norm", "float32"] and row[-1] == "pass" for row in rows)


@pytest.mark.nightly(reason="two more fresh processes that import torch")
def test_its_own_suite_passes_and_the_chip_itself_is_not_there(installed):
    real = conformance(installed, "hardware.simulate=false")
    assert real.returncode == 2 and "torch_acme is not installed" in real.stderr
    folder, variables = installed
    own = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "acme-arcforge/tests"]
    suite = subprocess.run(own, env=variables, capture_output=True, text=True, cwd=folder, check=False)
    assert suite.returncode == 0 and "7 passed" in suite.stdout, suite.stdout

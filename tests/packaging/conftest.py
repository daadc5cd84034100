"""Builds our wheels and those of the test plugins once, and installs sets of them outside the checkout.

An environment is a fresh virtual environment: the libraries are links to those of the running interpreter, the
editable installs of the checkout are left out, so that only the wheels under test are there.
"""

import fcntl
import os
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "attention", "optim", "rl", "serving", "hw")

PLUGIN = """
from arcforge_core.hookspecs import hookimpl

@hookimpl
def arcforge_plugin_api():
    return {api}

@hookimpl
def {hook}(registry):
    registry.add("{kind}", "{name}", "json:loads", schema="arcforge_core.configs:TorchCpuConfig", summary="test")
"""


def plugin(kind="attention", name="strange", api=1, hook="arcforge_register_components"):
    return PLUGIN.format(kind=kind, name=name, api=api, hook=hook)


BAD_PLUGINS = {
    "same-name": ("acme-arcforge-npu", plugin()),
    "import-error": ("import-error", "import no_such_driver\n"),
    "wrong-api": ("wrong-api", plugin(api=0)),
    "misspelt-hook": ("misspelt-hook", plugin(hook="arcforge_register_component")),
    "double-claim": ("double-claim", plugin(kind="hardware", name="torch_cpu")),
}
"""Distribution -> entry-point name and the plugin module's text."""


@dataclass(frozen=True)
class Environment:
    """An installed set of wheels."""

    folder: Path

    def run(self, *command, cwd=None, **variables):
        """Runs a console script or ``python`` of the environment and returns the finished process."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ARCFORGE_", "PYTHON", "COV_"))}
        script = self.folder / "bin" / command[0]
        return subprocess.run(
            [str(script), *command[1:]],
            cwd=cwd or self.folder,
            env={**inherited, "OMP_NUM_THREADS": "1", "ARCFORGE_CACHE": str(self.folder / "cache"), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def once(target):
    """Yields True to the first test process that asks for `target`, after which it exists for the others."""
    target.parent.mkdir(parents=True, exist_ok=True)
    done = target.with_name(target.name + ".done")
    with open(target.with_name(target.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    """A folder that all test processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / "packaging"


def build_wheel(project, folder):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)


def write_plugin(folder, distribution, entry, text):
    module = distribution.replace("-", "_")
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(text)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{distribution}"\nversion = "1.0"\n'
        f'[project.entry-points."arcforge.plugins"]\n{entry} = "{module}"\n'
    )


@pytest.fixture(scope="session")
def wheels(shared):
    """Distribution name -> wheel, of our packages, the example plugin and the bad plugins."""
    folder = shared / "wheels"
    with once(folder) as first:
        if first:
            for name in PACKAGES:
                build_wheel(ROOT / "packages" / name, folder)
            build_wheel(ROOT / "examples" / "plugins" / "acme_npu", folder)
            for distribution, (entry, text) in BAD_PLUGINS.items():
                source = shared / "sources" / distribution
                write_plugin(source, distribution, entry, text)
                build_wheel(source, folder)
    return {file.name.split("-")[0].replace("_", "-"): file for file in folder.glob("*.whl")}


@pytest.fixture(scope="session")
def libraries(shared):
    """A folder with links to the installed libraries, and to nothing of this project."""
    folder = shared / "libraries"
    with once(folder) as first:
        if first:
            folder.mkdir()
            for entry in Path(sysconfig.get_path("purelib")).iterdir():
                if (
                    not entry.name.startswith(("arcforge", "_editable_impl_arcforge", "acme"))
                    and entry.suffix != ".pth"
                ):
                    (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session")
def install(shared, wheels, libraries):
    """``install(names...)`` returns an environment that holds exactly these distributions of ours."""

    def make(*names):
        folder = shared / "environments" / "+".join(names)
        with once(folder) as first:
            if first:
                subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
                site = next((folder / "lib").glob("python*/site-packages"))
                (site / "libraries.pth").write_text(f"{libraries}\n")
                pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
                options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check"]
                chosen = [str(wheels[name]) for name in names]
                subprocess.run([*pip, "install", *options, *chosen], check=True, capture_output=True)
        return Environment(folder)

    return make

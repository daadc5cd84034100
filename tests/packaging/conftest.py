"""Builds our wheels and those of the test plugins once, and installs sets of them outside the checkout.

An environment is a fresh virtual environment with the wheels under test and with links to the libraries that
they declare: neither the editable installs of the checkout nor undeclared libraries are there.
"""

import fcntl
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from arcforge_core.files.cache import cache_folder

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "attention", "optim", "rl", "serving", "hw")

PLUGIN = """
from arcforge_core.plugins.hookspecs import hookimpl

@hookimpl
def arcforge_plugin_api():
    return {api}

@hookimpl
def {hook}(registry):
    registry.add("{kind}", "{name}", "json:loads", schema="arcforge_core.configs:TorchCpuConfig", summary="test")
"""


def plugin(kind="attention", name="strange", api=2, hook="arcforge_register_components"):
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

    def options(self, cwd, variables):
        """Returns the arguments of `subprocess` that both ways to run share."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ARCFORGE_", "PYTHON", "COV_"))}
        own = {"OMP_NUM_THREADS": "1", "ARCFORGE_CACHE": str(self.folder / "cache")}
        native, compiled = self.folder / "cache" / "native", cache_folder("native")
        if not native.exists():  # C++ kernels are named by their content: compiling them here again tests nothing
            native.parent.mkdir(exist_ok=True)
            compiled.mkdir(parents=True, exist_ok=True)
            native.symlink_to(compiled)
        return {
            "cwd": cwd or self.folder,
            "env": {**inherited, **own, **variables},
            "stdin": subprocess.DEVNULL,
            "text": True,
        }

    def run(self, name, *arguments, cwd=None, **variables):
        """Runs a console script or ``python`` of the environment and returns the finished process."""
        command = [str(self.folder / "bin" / name), *arguments]
        return subprocess.run(command, capture_output=True, check=False, **self.options(cwd, variables))

    @contextmanager
    def start(self, name, *arguments, cwd=None, **variables):
        """Starts a console script, with all it says on stdout, and stops it at the end."""
        command = [str(self.folder / "bin" / name), *arguments]
        merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(
            command, **merged, **self.options(cwd, {"PYTHONUNBUFFERED": "1", **variables})
        ) as process:
            try:
                yield process
            finally:
                process.terminate()


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


def link_libraries(site, folder):
    """Links what the distributions in `site` declare to need, and what that needs, into `folder`.

    Nothing else is there, so an import that no wheel declares fails.
    """
    ours = {dist.name: dist for dist in metadata.distributions(path=[str(site)])}
    todo = [line for dist in ours.values() for line in dist.requires or ()]
    seen = set()
    while todo:
        requirement = Requirement(todo.pop())
        wanted = (requirement.name, *sorted(requirement.extras))
        relevant = [{"extra": extra} for extra in ("", *requirement.extras)]
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not needed or wanted in seen or requirement.name in ours:
            continue
        seen.add(wanted)
        dist = metadata.distribution(requirement.name)
        for line in dist.requires or ():
            marker = Requirement(line).marker
            if marker is None or any(marker.evaluate(context) for context in relevant):
                todo.append(line.partition(";")[0])
        for top in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(dist.locate_file(top))


@pytest.fixture(scope="session")
def install(shared, wheels):
    """``install(names...)`` returns an environment that holds exactly these distributions of ours."""

    def make(*names):
        folder = shared / "environments" / "+".join(names)
        with once(folder) as first:
            if first:
                subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
                pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
                options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check"]
                chosen = [str(wheels[name]) for name in names]
                subprocess.run([*pip, "install", *options, *chosen], check=True, capture_output=True)
                site = next((folder / "lib").glob("python*/site-packages"))
                (folder / "libraries").mkdir()
                link_libraries(site, folder / "libraries")
                (site / "libraries.pth").write_text(f"{folder / 'libraries'}\n")
        return Environment(folder)

    return make

"""The only file that touches Hydra: it composes a command's configuration and runs the command with it.

`compose_config` returns a dataclass for a list of overrides; `run_app` is a console script's whole command
line (``--help``, ``--cfg job``, Tab completion, ``-m`` sweeps). All other code sees dataclasses only.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
from hydra.conf import HydraConf, JobConf, RunDir, SweepDir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from arcforge_core.config.config_file import with_file
from arcforge_core.config.field_help import render_field
from arcforge_core.config.help import render_help, written_groups
from arcforge_core.config.installed import fallbacks, missing
from arcforge_core.config.schema import TrainConfig
from arcforge_core.config.search_path import MAIN, MARKER, conflicts, options, sources
from arcforge_core.config.shorthand import written_out
from arcforge_core.config.sweep import SweepJob, summary_text
from arcforge_core.config.typed import understood
from arcforge_core.config.validate import Owners, explain, to_dataclass
from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.errors import ArcforgeError, ConfigError, PluginError, nearest
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.wheels import known_wheels
from arcforge_core.version import __version__

T = TypeVar("T")

for _kind in ("stage", "rounds"):  # references of a pipeline's recipe stay as they are until its stages are planned
    OmegaConf.register_new_resolver(_kind, lambda name, kind=_kind: f"${{{kind}:{name}}}", replace=True)

VERSION_BASE = "1.3"
COMPARISONS = "${oc.select:output_dir,outputs}/multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}"


class ArcforgeSearchPath(SearchPathPlugin):
    """Adds the project's folder, our recipes and the plugins' presets to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra, which has put core's own presets there as "main"."""
        for source in sources():
            if source.provider == "project":
                search_path.prepend(source.provider, source.path, anchor="main")
            elif source.path != MAIN:
                search_path.append(source.provider, source.path)


@dataclass
class Schemas:
    """The components' dataclasses, and the errors of those that cannot be imported."""

    owners: Owners = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)


@functools.cache
def store_components() -> Schemas:
    """Makes every component's dataclass the option of its name in Hydra's group of its kind.

    A third-party component that cannot be imported is left out, so that other commands continue; requesting it raises
    the error.
    """
    Plugins.instance().register(ArcforgeSearchPath)
    schemas = Schemas()
    for (kind, name), claims in registry().claims.items():
        try:
            schema: Any = registry().get(kind, name).load_schema()
            node = schema
            if getattr(schema, "name", None) != name:
                node = OmegaConf.structured(schema)
                node.name = name
            package = f"{kind}.{name}" if getattr(schema, "several", False) else None
            ConfigStore.instance().store(name, node, group=kind, package=package, provider=claims[0].distribution)
        except Exception as error:
            schemas.failures[kind, name] = str(error)
            continue
        schemas.owners.setdefault(schema, []).append((kind, name))
    return schemas


def compose_config(config_name: str, schema: type[T], overrides: Sequence[str] = ()) -> T:
    """Composes a configuration as the command line would.

    Args:
        config_name: primary YAML file, e.g. ``train``; its defaults list starts with ``train_schema``.
        schema: the root dataclass, stored under that name.
        overrides: as typed on the command line, e.g. ``["attention=gqa", "trainer.max_steps=3"]``.

    Raises:
        ConfigError: unknown field, wrong type or an impossible combination.
        ArcforgeError: an unknown option, or an override that cannot be read.
    """
    store_components()
    ConfigStore.instance().store(f"{config_name}_schema", schema)
    module = MAIN.removeprefix("pkg://")
    with (
        _our_errors(overrides),
        _uncopied_store(),
        hydra.initialize_config_module(module, job_name=config_name, version_base=VERSION_BASE),
    ):
        given = understood(config_name, schema, written_out(config_name, schema, overrides))
        config = hydra.compose(config_name, given, return_hydra_config=True)
    _refuse_conflicts(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    return cast(T, to_dataclass(config, store_components().owners))


@contextmanager
def _uncopied_store() -> Iterator[None]:
    """Has Hydra share the store, which it only reads; its copies are a fifth of a composition's time. It nests."""
    store: Any = ConfigStore.instance()
    outermost = "__deepcopy__" not in vars(store)
    store.__deepcopy__ = lambda memo: store
    try:
        yield
    finally:
        if outermost:
            del store.__deepcopy__


def compose(overrides: Sequence[str] = ()) -> TrainConfig:
    """Composes the configuration of ``arcforge-train``; see `compose_config`."""
    return compose_config("train", TrainConfig, overrides)


def run_app(config_name: str, schema: type[T], fn: Callable[[T], Result | None]) -> int:
    """Runs a job's command line: `fn` once, or once per job of a sweep.

    A failed job does not stop a sweep; the comparison page is rewritten after each job. Of the processes that
    torchrun starts, only the first writes it.

    Args:
        config_name: primary YAML file, which has the job's name.
        schema: the root dataclass.
        fn: the work. It imports heavy modules itself and seeds its own random generators, because the jobs of a
            sweep share the process.

    Returns:
        The exit code: 0; in a sweep with failed jobs 2 if all failures are user errors, otherwise 1.

    Raises:
        ArcforgeError: a user error outside a sweep; other exceptions of `fn` propagate.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        named = [argument for argument in sys.argv[1:] if not argument.startswith("-") and "=" not in argument]
        print("\n".join(render_field(config_name, schema, name) for name in named) or render_help(config_name))
        return 0
    if "--version" in sys.argv[1:]:
        print(f"arcforge {__version__}")
        return 0
    # argparse takes overrides on one side of a flag only; -m may stand anywhere
    arguments = sorted(sys.argv[1:], key=lambda argument: argument not in ("-m", "--multirun"))
    sys.argv[1:] = understood(config_name, schema, written_out(config_name, schema, with_file(config_name, arguments)))
    store_components()
    ConfigStore.instance().store(f"{config_name}_schema", schema)
    jobs: list[SweepJob] = []
    sweep_folder: Path | None = None
    pages: list[Path] = []
    speaks = int(os.environ.get("RANK", 0)) == 0

    def run_job(config: DictConfig) -> None:
        nonlocal sweep_folder
        context = HydraConfig.get()
        job = SweepJob(len(jobs), dict(line.lstrip("+~").partition("=")[::2] for line in context.overrides.task))
        jobs.append(job)
        if context.mode == RunMode.MULTIRUN:
            sweep_folder = Path(context.sweep.dir)
            if speaks:
                print(f"job {job.number}: {' '.join(context.overrides.task)}", flush=True)
        try:
            _refuse_conflicts(context.runtime.choices)
            if speaks and (note := fallbacks(written_groups(config_name), dict(context.runtime.choices))):
                say(note)
            job.result = fn(to_dataclass(config, store_components().owners))
        except Exception as error:
            job.error = error
        if sweep_folder is not None:
            _report_failure(job)
            if speaks:
                from arcforge_core.config.sweep_page import write_comparison  # imports matplotlib

                pages[:] = write_comparison(sweep_folder, jobs)
            if job.result and job.result.status == "interrupted":
                raise KeyboardInterrupt  # the job saved itself; whoever pressed Ctrl-C means the sweep

    # Hydra leaves a multirun.yaml in every process
    folder = nullcontext(COMPARISONS) if speaks else tempfile.TemporaryDirectory()
    with (
        _environment("HYDRA_FULL_ERROR", "1"),
        _our_errors(sys.argv[1:]),
        _uncopied_store(),
        folder as name,
    ):  # errors come to us, unprinted
        ConfigStore.instance().store("config", _hydra_settings(config_name, name), group="hydra")
        hydra.main(config_path=MAIN, config_name=config_name, version_base=VERSION_BASE)(run_job)()
    if sweep_folder is not None:
        if speaks:
            print(summary_text(jobs))
            for page in pages:
                print(f"comparison: {page}")
        return max((_exit_code(job.error) for job in jobs), key=(0, 2, 1).index)
    if jobs and jobs[0].error:
        raise jobs[0].error
    return 0


def _hydra_settings(config_name: str, sweep_folder: str) -> HydraConf:
    """Hydra makes no folders, files or log lines of its own; only a sweep has a folder, for its comparison."""
    settings = HydraConf(
        run=RunDir("."),
        sweep=SweepDir(sweep_folder, "."),
        output_subdir=None,
        job=JobConf(name=config_name, chdir=False),
    )
    quiet = {"hydra_logging": "none", "job_logging": "none"}
    settings.defaults = [
        {k: quiet.get(k, v) for k, v in entry.items()} if isinstance(entry, dict) else entry
        for entry in settings.defaults
    ]
    return settings


def _report_failure(job: SweepJob) -> None:
    if isinstance(job.error, ArcforgeError):
        print(f"job {job.number} failed: {job.error}", file=sys.stderr)
    elif job.error:
        traceback.print_exception(job.error)


def _exit_code(error: Exception | None) -> int:
    return 0 if error is None else 2 if isinstance(error, ArcforgeError) else 1


def _refuse_conflicts(choices: dict[str, Any]) -> None:
    """Refuses a chosen option that two distributions bring; unused conflicts are no error."""
    claimed = conflicts()
    for group, option in choices.items():
        owners = claimed.get((group.split("@")[0], option)) if isinstance(option, str) else None
        if owners:
            raise PluginError(
                f"{group}={option} is brought by {' and by '.join(owners)}; rename one, or switch a plugin "
                "off with ARCFORGE_BLOCK_PLUGINS"
            )


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _our_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Converts Hydra's and OmegaConf's exceptions to ours: one line, the nearest name, no hint to type ``+``."""
    try:
        yield
    except MissingConfigException as error:
        raise _unknown_option(error, arguments) from error
    except OverrideParseException as error:
        raise ArcforgeError(
            f"cannot read {error.override!r}: write FIELD=VALUE or GROUP=OPTION; a value with special "
            "characters needs two pairs of quotes, as 'FIELD=\"VALUE\"'"
        ) from error
    except HydraException as error:
        cause, context = error.__cause__ or error.__context__, str(error).splitlines()[0]
        if isinstance(cause, OmegaConfBaseException):
            explained = explain(cause, context)
            file = re.match(r"In '(.+?)'", context)
            if file:
                explained.args = (f"in {file.group(1)}: {explained}",)
            raise explained from error
        raise ArcforgeError(_plain(str(error))) from error
    except OmegaConfBaseException as error:
        raise explain(error) from error
    except RecursionError as error:
        chosen = ", ".join(argument for argument in arguments if "=" in argument and not argument.startswith("-"))
        raise ArcforgeError(
            f"a recipe includes itself, directly or through others: look at the defaults of {chosen}"
        ) from error
    except OSError as error:  # the folder of a sweep; errors of jobs are kept with them
        raise ConfigError("output_dir", error.filename, f"cannot be written: {error.strerror}") from error
    except ValueError as error:  # Hydra's own for GROUP=null and the like
        raise ArcforgeError(str(error)) from error


def _plain(message: str) -> str:
    """Rewrites those of Hydra's messages whose advice has several lines."""
    first = message.splitlines()[0]
    if first.startswith("Ambiguous value for argument"):
        return f"{first}: several values are a sweep, add -m; a list is written FIELD=[VALUE,VALUE]"
    if first.startswith("Multiple values for "):
        group = first.removeprefix("Multiple values for ").split(".")[0]
        return f"{group} is chosen twice; write {group}=OPTION once, without +"
    if first.startswith("You must specify "):
        group = first.split("'")[1]
        return f"{group} must be chosen, as {group}=OPTION, of {', '.join(options(group))}"
    if first.startswith("Could not append to config"):
        return f"{first} Write it without +"
    return message


def _unknown_option(error: MissingConfigException, arguments: Sequence[str]) -> ArcforgeError:
    """Explains an unknown ``group=option``: the wheel that contains it, or the nearest name."""
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    failure = store_components().failures.get((group, option))
    if failure:
        return PluginError(failure)
    if (group, option) in known_wheels():
        return PluginError(missing(arguments) or registry().explain_missing(group, option))
    known = options(group)
    if not known:
        return ArcforgeError(str(error).splitlines()[0])
    own = Path("conf", group, f"{option}.yaml")
    if own.is_file():
        return ConfigError(group, option, f"{own} is not read: create the empty file conf/{MARKER} beside its folder")
    return ConfigError(group, option, f"accepted: {', '.join(known)}{nearest(option, known)}")

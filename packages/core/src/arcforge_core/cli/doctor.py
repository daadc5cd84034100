"""``arcforge doctor``: lists installed packages, tests this machine, and names a remedy for each problem."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata, util
from typing import TYPE_CHECKING

from arcforge_core.cli.errors import Parser, run_main
from arcforge_core.cli.plugins import problems
from arcforge_core.contracts.sandbox import SandboxProbe
from arcforge_core.ops.cxx import cxx, missing_cxx
from arcforge_core.plugins.loader import load_plugins, registry
from arcforge_core.plugins.registry import FIRST_PARTY
from arcforge_core.plugins.wheels import how_to_install

if TYPE_CHECKING:
    from arcforge_core.contracts.hardware import Kernel

LIBRARIES = ("torch", "lightning", "numpy", "hydra-core", "omegaconf", "pluggy", "safetensors", "tokenizers")

OPTIONAL = {
    "pyarrow": ("parquet files", "arcforge-core[parquet]"),
    "datasets": ("data=hub", "arcforge-core[datasets]"),
    "wandb": ("logger=wandb", "arcforge-core[wandb]"),
    "mlflow": ("logger=mlflow", "arcforge-core[mlflow]"),
    "triton": ("kernels of hardware=cuda", "arcforge-hw[cuda]"),
    "pytest": ("the conformance suites as tests", "arcforge-core[test]"),
}
"""Modules that some work needs: the work that fails without each, and the extra that installs it."""

Rows = Iterable[tuple[str, str]]


@run_main
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. It lists missing and broken parts; these are no failure of the command."""
    parser = Parser(prog="arcforge doctor", description=__doc__)
    parser.add_argument(
        "--params",
        nargs="+",
        metavar="OVERRIDE",
        help="count a preset instead, e.g. --params model=glm5 attention=dsa",
    )
    parser.add_argument("section", nargs="?", choices=["sandbox"], help="test the sandboxes of this machine")
    options = parser.parse_args(argv)
    if options.section == "sandbox":
        show("sandboxes", sandbox_rows())
        return 0
    if options.params:
        show("parameters", count_rows(options.params))
        return 0
    show("packages", package_rows())
    show("machine", machine_rows())
    show("hardware backends", hardware_rows())
    show("optional", optional_rows())
    show("environment variables", [(k, v) for k, v in sorted(os.environ.items()) if k.startswith("ARCFORGE_")])
    print("plugins")
    loaded = load_plugins()
    print("\n".join([f"  {len(loaded.plugins)} found", *(f"  {line}" for line in problems(loaded))]))
    return 0


def show(title: str, rows: Rows) -> None:
    """Prints a titled table of two columns, or nothing if it has no rows."""
    rows = list(rows)
    width = max((len(label) for label, _ in rows), default=0)
    if rows:
        print("\n".join([title, *(f"  {label:<{width}}  {text}" for label, text in rows), ""]), flush=True)


def package_rows() -> Iterator[tuple[str, str]]:
    """Yields our packages and the libraries below them with their versions."""
    for name in FIRST_PARTY:
        yield f"arcforge-{name}", version(f"arcforge-{name}")
    for name in LIBRARIES:
        yield name, version(name)


def version(distribution: str) -> str:
    """Returns the installed version, or how to get the distribution."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return (
            f"not installed: {how_to_install(distribution)}"
            if distribution.startswith("arcforge-")
            else "not installed"
        )


def machine_rows() -> Iterator[tuple[str, str]]:
    """Yields interpreter, system, instructions, cores, memory, compiler and the precision that is multiplied faster."""
    import torch

    from arcforge_core.ops.compat import why_precision
    from arcforge_core.ops.processor import allowed_cores, memory_bytes, missed_instructions, processor_name

    yield "python", f"{platform.python_version()} at {sys.executable}"
    yield "system", f"{platform.platform()}, {processor_name()}"
    missed = missed_instructions()
    yield "instructions", torch.backends.cpu.get_cpu_capability() + (f"; not reported: {missed}" if missed else "")
    yield "CPU cores", f"{allowed_cores()} usable of {os.cpu_count()}"
    yield "memory", f"{memory_bytes() / 2**30:.1f} GiB"
    yield "compiler", compiler()
    yield "precision=auto", why_precision("cpu")


def compiler() -> str:
    """Returns the C++ compiler that torch would use, or the consequences of having none."""
    if reason := missing_cxx():
        return f"{reason}: C++ CPU kernels and torch.compile are off, torch's own operators run instead, slower"
    answer = subprocess.run([*cxx(), "--version"], capture_output=True, text=True, check=False)
    return (answer.stdout or answer.stderr).partition("\n")[0] or " ".join(cxx())


def hardware_rows() -> Iterator[tuple[str, str]]:
    """Yields the result of each backend's probe and faults of its kernels, or the reason why it cannot be loaded."""
    for name in registry().names("hardware"):
        if name == "auto":
            continue
        try:
            component = registry().get("hardware", name)
            hardware = component.load()(component.load_schema()())
            probe = hardware.probe()
            if probe.ok and hasattr(hardware, "confirm"):  # a backend of contract 1 has none
                probe = hardware.confirm()
            yield name, f"{'usable' if probe.ok else 'not usable'}: {probe.reason}"
            if probe.ok:
                yield from (("", line) for line in kernel_faults(hardware.kernels()))
                if hasattr(hardware, "choices"):  # of a backend that measures
                    yield from (("", line) for line in hardware.choices())
        except Exception as error:  # a third party's backend must not stop the doctor
            yield name, f"broken: {type(error).__name__}: {error}"


def kernel_faults(kernels: Sequence[Kernel]) -> Iterator[str]:
    """Yields a line for each kernel that is never used, and for kernels with the same priority."""
    from arcforge_core.ops.dispatch import fault_of, ties

    faults = {kernel.name: fault_of(kernel) for kernel in kernels}
    yield from (f"kernel {name} is not used: {reason}" for name, reason in faults.items() if reason)
    sound = [kernel for kernel in kernels if not faults[kernel.name]]
    yield from (f"{tie}; calls that both support use neither" for tie in ties(sound))


def sandbox_rows() -> Iterator[tuple[str, str]]:
    """Yields properties of the machine, then the result of each sandbox's probe and its gaps here."""
    facts: dict[str, str] = {}
    verdicts: list[tuple[str, str]] = []
    for name in registry().names("sandbox"):
        if name == "auto":
            continue
        try:
            component = registry().get("sandbox", name)
            probe: SandboxProbe = component.load()(component.load_schema()()).probe()
        except Exception as error:  # a third-party backend must not stop the command
            verdicts.append((name, f"broken: {type(error).__name__}: {error}"))
            continue
        facts |= probe.facts
        verdicts.append((name, f"{'usable' if probe.ok else 'not usable'}: {probe.reason}"))
        verdicts += [("", f"gap: {gap}") for gap in probe.gaps]
    yield from sorted(facts.items())
    yield from verdicts or [("none", f"no package brings one: {how_to_install('arcforge-rl')}")]


def optional_rows() -> Iterator[tuple[str, str]]:
    """Yields optional modules: found, or the work that needs them and the extra to install."""
    for module, (use, extra) in OPTIONAL.items():
        found = util.find_spec(module) is not None
        yield module, f"found ({use})" if found else f"not installed, needed for {use}: pip install '{extra}'"


def count_rows(overrides: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the counts of the model that these overrides of ``arcforge-train`` describe, without its memory."""
    from arcforge_core.config.compose import compose
    from arcforge_core.model.params import count_parameters

    config = compose(overrides)
    counts = count_parameters(config.model, config.attention)
    layer = counts.cache_bytes_per_token / config.model.num_hidden_layers
    yield "preset", f"model={config.model.name} attention={config.attention.name}"
    yield "values with MTP", f"{counts.total_with_mtp:,}"
    yield "values without MTP", f"{counts.total_without_mtp:,}"
    yield "active per token", f"{counts.active:,} (without embedding and head)"
    yield "cache per token", f"{counts.cache_bytes_per_token:,} bytes in bf16, {layer:,.0f} per layer"

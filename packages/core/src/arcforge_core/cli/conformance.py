"""``arcforge-conformance hardware=NAME``: tests a backend's kernels, device and collectives, and a model on it."""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from arcforge_core.cli.errors import USER_ERROR, Parser, run_main
from arcforge_core.config.compose import compose
from arcforge_core.config.schema import HardwareConfig, check_choice
from arcforge_core.contracts.op_names import OP_NAMES
from arcforge_core.errors import ConfigError


@run_main
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; exit code 2 names the ops that fail.

    Raises:
        ConfigError: the backend is unknown or not usable here.
    """
    parser = Parser(prog="arcforge-conformance", description=__doc__)
    parser.add_argument("override", nargs="*", help="hardware=NAME and its fields, as for arcforge-train")
    parser.add_argument("--op", action="append", help="only this op; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="draw each case once instead of twice")
    depth.add_argument("--full", action="store_true", help="draw each case five times")
    parser.add_argument("--seed", type=int, help="of all values; a run without it takes another one each time")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write report.json, report.md and report.html")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write the cases as data, and check nothing")
    options = parser.parse_args(argv)

    config = compose(options.override)
    check_ops(options.op or (), config.hardware)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    if options.export is not None:
        from arcforge_core.testing.case_export import export_cases

        count = export_cases(options.export, options.op or OP_NAMES, seed)
        print(f"{count} cases with --seed {seed}: {options.export}")
        return 0

    from arcforge_core.ops.hardware import build_hardware  # imports torch, which no refusal above needs
    from arcforge_core.testing.autocast_checks import check_autocast
    from arcforge_core.testing.collective_checks import check_collectives
    from arcforge_core.testing.compile_checks import check_compile
    from arcforge_core.testing.conformance_report import write_report
    from arcforge_core.testing.device_checks import check_device
    from arcforge_core.testing.hardware_checks import DECLINED, FAIL, PASS, CheckResult, check_hardware
    from arcforge_core.testing.model_checks import check_model
    from arcforge_core.testing.stream_checks import check_streams

    hardware = build_hardware(config.hardware)
    draws = 1 if options.quick else 5 if options.full else 2
    if not options.json:
        print(f"{hardware.name}: {hardware.confirm().reason}; --seed {seed}")
        print(f"{'op':<32}{'kernel':<34}{'dtype':<10}{'error':>9}{'allowed':>9}  verdict")
    results: list[CheckResult] = []
    kernels = check_hardware(hardware, options.op, seed, draws)
    exchanges = check_collectives(hardware, functools.partial(build_hardware, config.hardware), seed)
    others = itertools.chain(
        check_device(hardware),
        check_streams(hardware, seed),
        check_autocast(hardware),
        check_compile(hardware),
        exchanges,
        check_model(hardware, seed),
    )
    for result in kernels if options.op else itertools.chain(others, kernels):
        results.append(result)
        if options.json:
            print(json.dumps({**asdict(result), "seed": seed}), flush=True)
        else:
            note = f": {result.reason}" if result.reason else ""
            row = f"{result.op:<32}{result.kernel:<34}{result.dtype:<10}{result.error:>9.1e}{result.tolerance:>9.0e}"
            print(f"{row}  {result.verdict}{note}", flush=True)
    failed = sorted({result.op for result in results if result.verdict == FAIL})
    passed = sum(result.verdict == PASS for result in results if result.kernel)
    declined = sum(result.verdict == DECLINED for result in results)
    if not options.json:
        print(f"failed: {', '.join(failed)}" if failed else f"passed: {passed}, declined: {declined}")
    if options.report is not None:
        page = write_report(options.report, hardware, seed, results)
        print(f"report: {page}", file=sys.stderr)
    if not failed and not passed:
        raise ConfigError("hardware", hardware.name, "no kernel was checked: it has none, or declines every call")
    return USER_ERROR if failed else 0


def check_ops(ops: Sequence[str], config: HardwareConfig) -> None:
    """Checks names of ops; only those that core lacks need the backend, whose plugin may register them.

    Raises:
        ConfigError: no op has this name.
    """
    if set(ops) <= set(OP_NAMES):
        return
    from arcforge_core.ops.hardware import build_hardware
    from arcforge_core.ops.specs import SPECS

    build_hardware(config).kernels()
    for op in ops:
        check_choice("op", op, tuple(sorted(SPECS)))

"""``arcforge-conformance hardware=NAME``: tests a backend's kernels against the float64 reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from arcforge_core.cli.errors import USER_ERROR, Parser, run_main
from arcforge_core.config.compose import compose
from arcforge_core.config.schema import check_choice
from arcforge_core.contracts.op_names import OP_NAMES


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
    options = parser.parse_args(argv)

    for op in options.op or ():
        check_choice("op", op, tuple(sorted(OP_NAMES)))
    config = compose(options.override)

    from arcforge_core.ops.hardware import build_hardware  # imports torch, which no refusal above needs
    from arcforge_core.testing.hardware_checks import CheckResult, check_hardware

    hardware = build_hardware(config.hardware)
    if not options.json:
        print(f"{hardware.name}: {hardware.probe().reason}")
        print(f"{'op':<22}{'kernel':<34}{'dtype':<10}{'error':>9}{'allowed':>9}  verdict")
    failed: list[CheckResult] = []
    for result in check_hardware(hardware, options.op):
        if options.json:
            print(json.dumps(asdict(result)), flush=True)
        else:
            note = f": {result.reason}" if result.reason else ""
            row = f"{result.op:<22}{result.kernel:<34}{result.dtype:<10}{result.error:>9.1e}{result.tolerance:>9.0e}"
            print(f"{row}  {result.verdict}{note}", flush=True)
        if result.verdict == "FAILED":
            failed.append(result)
    if failed and not options.json:
        print(f"failed: {', '.join(sorted({result.op for result in failed}))}")
    return USER_ERROR if failed else 0

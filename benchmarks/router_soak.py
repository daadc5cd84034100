"""The router while its engines are killed, every answer checked.

    python benchmarks/router_soak.py [--minutes 30] [--every 180] [--engines 2] [--prefill 0] [--clients 16]
                                      [--json FILE]

A small deterministic model with ``dp=N`` answers random requests, streams and whole replies. Every `--every` seconds an
engine is killed (SIGKILL). Each answer must be that of the simple engine token for token, as far as it came, and end as
it should or with an error; a request that is never answered stops the run. Of each kill it is written down after how
many seconds a request that began after it had ended well (``answered_s``) and all engines were there again
(``back_s``). ``answered_max`` and ``back_max`` are their maxima, in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import _path  # noqa: F401
from _machine import describe_machine
from _soak_http import LONGEST, build
from arcforge_core import save_pretrained
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from support.chaos import drive
from support.serving_load import make_cases


def main() -> None:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=180.0, help="seconds from one kill to the next")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=0, help="further processes that compute prompts for the others")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = build(0)
    made = make_cases(model, [model.state_dict()], 75, LONGEST)
    cases = [case for case in made if case.params.matcher is None and not case.params.prompt_logprobs]
    engine = PagedEngineConfig(page_size=4, cache_tokens=640, max_running=16, max_batch_tokens=128)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, Path(folder) / "model")
        checkpoint, engines = f"{folder}/model", {"dp": options.engines, "prefill": options.prefill}
        config = ServeConfig(engine, checkpoint=checkpoint, shutdown_seconds=10.0, **engines)
        found = asyncio.run(drive(config, cases, 60 * options.minutes, options.every, options.clients))
    kills = found["kills"]
    report = {
        "machine": describe_machine(1), **found, "ratios": {},
        "answered_max": max((kill["answered_s"] for kill in kills), default=0.0),
        "back_max": max((kill["back_s"] for kill in kills), default=0.0),
    }  # fmt: skip
    print(json.dumps({key: value for key, value in report.items() if key != "machine"}, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

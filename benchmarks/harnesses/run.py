"""lm-eval and inspect-ai against `arcforge-serve`, from an environment of their own; nothing comes from a hub.

    make harnesses ARGS="--checkpoint DIR"
    python benchmarks/harnesses/run.py --checkpoint DIR --python PYTHON [--only HARNESS] [--limit N] [--length TOKENS]

The server is started on a free port and stopped at the end. Then come

- `local-completions` of lm-eval: procedural RULER tasks, sums, and sums as choices, by log-probs of `echo`;
- `local-chat-completions`: the same RULER tasks and sums as chats (needs a chat template, as all that follows);
- inspect-ai through `/v1/chat/completions`, `/v1/responses` and `/v1/messages`, with the providers `openai-api`,
  `openai` and `anthropic`: sums, sums with a tool, and sums as JSON of a schema.

A figure is a score of the model; the run is green when every task ends and no request was refused or failed. The exit
code says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from arcforge_core.checkpoint.pretrained import find_checkpoint

HERE = Path(__file__).resolve().parent
RULER = ("niah_single_1", "niah_multikey_2", "niah_multikey_3")
"""Tasks that make up their texts; the others of RULER read essays or question sets from a hub."""
COMPLETED, CHATTED = ("arcforge_sums", "arcforge_sums_choice"), ("arcforge_sums_chat",)
NAME = "served"
PLAIN = '{"chat_template_kwargs": {"enable_thinking": false}}'
"""What the tasks ask for themselves; the provider `anthropic` takes it only so."""
Rows = list[dict[str, Any]]


@contextmanager
def server(checkpoint: str, options: list[str]) -> Iterator[str]:
    """Yields the address of a server of a checkpoint."""
    program = "import sys; from arcforge_core.cli.main import run_job; sys.exit(run_job('serve'))"
    command = [sys.executable, "-c", program, f"checkpoint={checkpoint}", "port=0", f"served_name={NAME}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[2]
        finally:
            process.terminate()
            process.wait(60)


def call(command: list[str], folder: Path, log: Path, extra: Mapping[str, str] | None = None) -> int:
    """Runs a harness offline; what it prints goes to a file, and a failure reports its last line."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "ARCFORGE_API_KEY": "none"}
    with log.open("w") as output:
        environment = {**os.environ, **offline, **keys, **(extra or {})}
        status = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output).returncode
    if status:
        print(f"{log.stem} ended with {status}: {(log.read_text().splitlines() or ['it said nothing'])[-1]}")
    return status


def lm_eval(args: argparse.Namespace, address: str, kind: str, tasks: tuple[str, ...], folder: Path) -> Rows:
    """Returns a row for each task."""
    path = {"local-completions": "completions", "local-chat-completions": "chat/completions"}[kind]
    tokenizer = str(find_checkpoint(args.checkpoint))
    model = f"model={NAME},base_url={address}/v1/{path},num_concurrent=4,max_retries=1,max_length={2 * args.length}"
    model += f",tokenizer={tokenizer},tokenizer_backend=huggingface"
    metadata = {"max_seq_lengths": [args.length], "tokenizer": tokenizer}
    output = folder / kind
    command = [
        str(args.python), "-m", "lm_eval", "run", "--model", kind, "--model_args", model, "--tasks", ",".join(tasks),
        "--metadata", json.dumps(metadata), "--include_path", str(HERE / "tasks"), "--limit", str(args.limit),
        "--output_path", str(output), *(["--apply_chat_template"] if "chat" in kind else []),
    ]  # fmt: skip
    status = call(command, folder, folder / f"{kind}.log")
    found = sorted(output.rglob("results_*.json"))
    results = json.loads(found[-1].read_text())["results"] if found and status == 0 else {}
    rows = []
    for task in tasks:
        scores = {name: score for name, score in results.get(task, {}).items() if is_score(name, score)}
        rows.append({"harness": "lm-eval", "through": kind, "task": task, "scores": scores, "green": bool(scores)})
    return rows


def is_score(name: str, value: Any) -> bool:
    """Whether lm-eval's result is a score: RULER has -1 for lengths that were not asked for."""
    return (
        isinstance(value, int | float) and "stderr" not in name and name not in ("sample_len", "samples") and value >= 0
    )


def inspect_ai(args: argparse.Namespace, address: str, through: str, folder: Path) -> Rows:
    """Returns a row for each task."""
    model, options, base = {
        "/v1/chat/completions": (f"openai-api/arcforge/{NAME}", [], {"ARCFORGE_BASE_URL": f"{address}/v1"}),
        "/v1/responses": (f"openai/{NAME}", ["-M", "responses_api=true"], {"OPENAI_BASE_URL": f"{address}/v1"}),
        "/v1/messages": (f"anthropic/{NAME}", ["-M", f"extra_body={PLAIN}"], {"ANTHROPIC_BASE_URL": address}),
    }[through]
    logs = folder / through.strip("/").replace("/", "_")
    command = [
        str(args.python), "-m", "inspect_ai", "eval", "inspect_tasks.py", "--model", model, *options,
        "-T", f"count={args.limit}", "--max-tokens", "256", "--temperature", "0", "--log-dir", str(logs),
        "--log-format", "json", "--display", "plain", "--max-retries", "1", "--no-fail-on-error",
    ]  # fmt: skip
    call(command, HERE, folder / f"{logs.name}.log", base)  # it takes no absolute paths
    rows = []
    for file in sorted(logs.glob("*.json")):
        log = json.loads(file.read_text())
        failed = sum(sample.get("error") is not None for sample in log.get("samples") or [])
        found = (log.get("results") or {}).get("scores", [])
        scores = {each["name"]: each["metrics"]["accuracy"]["value"] for each in found}
        green = log["status"] == "success" and not failed
        row = {"harness": "inspect-ai", "through": through, "task": log["eval"]["task"], "scores": scores}
        rows.append({**row, "failed": failed, "green": green})
    return rows or [{"harness": "inspect-ai", "through": through, "task": "all", "scores": {}, "green": False}]


def answers(address: str) -> dict[str, float]:
    """Returns how often the server answered, by route and status."""
    found = {}
    for line in httpx.get(f"{address}/metrics").text.splitlines():
        if line.startswith("arcforge:http_requests_total{"):
            labels, value = line.rsplit(" ", 1)
            path, status = (labels.split(f'{name}="')[1].split('"')[0] for name in ("path", "status"))
            found[f"{path} {status}"] = float(value)
    return found


def main() -> int:
    """Runs all, prints a table, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True, help="a model with its tokenizer, or a run")
    parser.add_argument("--python", required=True, type=Path, help="of the environment that has the harnesses")
    parser.add_argument("--limit", type=int, default=10, help="records of each task")
    parser.add_argument("--length", type=int, default=512, help="tokens of RULER's texts")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--logs", type=Path, help="a folder that keeps what the harnesses write")
    parser.add_argument("--only", choices=("lm-eval", "inspect-ai"), help="one of the harnesses")
    parser.add_argument("options", nargs="*", help="of arcforge-serve")
    args = parser.parse_args()
    args.python = args.python.absolute()
    with tempfile.TemporaryDirectory() as scratch, server(args.checkpoint, args.options) as address:
        folder = (args.logs or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        chats = httpx.post(f"{address}/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).status_code
        rows: Rows = []
        if args.only != "inspect-ai":
            rows += lm_eval(args, address, "local-completions", (*RULER, *COMPLETED), folder)
        if args.only != "inspect-ai" and chats == 200:
            rows += lm_eval(args, address, "local-chat-completions", (*RULER, *CHATTED), folder)
        if args.only != "lm-eval" and chats == 200:
            for through in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
                rows += inspect_ai(args, address, through, folder)
        counted = answers(address)
    for row in rows:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in row["scores"].items())
        print(
            f"{'green' if row['green'] else 'RED':6} {row['harness']:11} {row['through']:23} {row['task']:21} {scores}"
        )
    print("answers:", ", ".join(f"{name}: {count:.0f}" for name, count in sorted(counted.items())))
    refused = sum(count for name, count in counted.items() if not name.endswith(" 200") and name.startswith("/v1"))
    if args.json is not None:
        args.json.write_text(json.dumps({"rows": rows, "answers": counted, "refused": refused}, indent=2))
    return 0 if refused == 0 and all(row["green"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

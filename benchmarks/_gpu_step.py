"""Whole training steps on the device, and where their time is: by kind of kernel, by stage, and the device's idle time.

The step is the training code's own: losses with MTP, backward, clipping, Muon Split with AdamW, router balance; weights
in float32, activations in bfloat16.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from _gpu_clock import device, rates
from _gpu_profile import profiled
from _peers import Peer
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.config.compose import compose
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.contracts.optimizer import collect_roles
from arcforge_core.model.params import count_parameters, training_flops_per_token
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.train.run import build_module
from arcforge_core.train.step import StepBatch, StepResult, accumulate_gradients, balance_routers, clip_gradients

BILLION = (
    "model=small", "model.vocab_size=32768", "model.hidden_size=1536", "model.num_hidden_layers=16",
    "model.intermediate_size=4096", "model.moe_intermediate_size=512", "model.n_routed_experts=16",
    "model.num_attention_heads=16", "model.q_lora_rank=768", "model.kv_lora_rank=512", "model.qk_nope_head_dim=128",
    "model.qk_rope_head_dim=64", "model.v_head_dim=128", "model.index_n_heads=16", "model.index_head_dim=128",
    "model.index_topk=2048", "model.mtp.depths=1",
)  # fmt: skip
"""GLM-5's style: MLA with an indexer, sigmoid routers, one dense layer first; 0.96B parameters."""
DSA = ("attention=dsa", "optimizer=muon_split", "trainer.precision=bf16")
DENSE = ("model=small", "attention=mla", "model.mtp.depths=0", *DSA[1:])
TINY = ("model=tiny", "attention=dsa", "optimizer=muon_split", "trainer.precision=fp32")
ITEMS: dict[str, tuple[tuple[str, ...], str, int, int]] = {
    "small, Triton": (("model=small", *DSA), "auto", 8, 4096),
    "small, torch": (("model=small", *DSA), "torch", 8, 4096),
    "small, Triton, MLA": (DENSE, "auto", 8, 4096),
    "small, transformers, MLA": (DENSE, "transformers", 8, 4096),
    "1B, Triton": ((*BILLION, *DSA), "auto", 4, 4096),
    "1B, torch": ((*BILLION, *DSA), "torch", 4, 4096),
    "1B, Triton, absorbed": ((*BILLION, *DSA, "attention.form=absorbed"), "auto", 4, 4096),
    "1B, Triton, MLA": ((*BILLION, "attention=mla", *DSA[1:]), "auto", 4, 4096),
    "1B, Triton, indexer trained": ((*BILLION, *DSA, "attention.indexer_training=sparse"), "auto", 4, 4096),
}
"""Options, kernels, rows and tokens of a row."""
MODELS = {"small": ITEMS["small, Triton"][0], "1B": ITEMS["1B, Triton"][0]}


class WithoutTriton:
    """The CUDA backend with kernels of torch's operators alone."""

    def __init__(self, hardware: Any) -> None:
        self._hardware = hardware

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hardware, name)

    def kernels(self) -> list[Any]:
        """Returns the kernels that are not Triton's."""
        return [kernel for kernel in self._hardware.kernels() if not kernel.name.endswith((".triton", ".fla"))]


def names(quick: bool) -> list[str]:
    """Returns the items."""
    return list(ITEMS)


def random_batch(rows: int, tokens: int, vocab: int) -> StepBatch:
    """Returns one micro-batch of random tokens."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab, (rows, tokens + 1), generator=draw)
    micro = TrainBatch(
        tokens_T=ids[:, :-1].flatten(),
        targets_T=ids[:, 1:].flatten(),
        weights_T=torch.ones(rows * tokens),
        batch=SequenceBatch.build([tokens] * rows),
        cursor=1,
        num_bytes=rows * tokens,
    )
    return StepBatch([micro]).to(device())


class Step:
    """A model with its optimizer, and one step of it in stages."""

    def __init__(self, options: tuple[str, ...], kernels: str) -> None:
        config = compose(list(options))
        hardware: Any = select_hardware("cuda" if device() == "cuda" else "cpu")
        if kernels == "torch":
            hardware = WithoutTriton(hardware)
        with torch.device(device()):
            self.module = build_module(config, hardware)
        self.config, self.model = config, self.module.model.to(device())
        factory, roles = registry().get("optimizer", config.optimizer.name).load(), collect_roles(self.model)
        muon = config.optimizer.name.startswith("muon")
        self.optimizer = (
            factory(config.optimizer, roles, ops=Ops(hardware)) if muon else factory(config.optimizer, roles)
        )
        self.result = StepResult({}, {})

    def stages(self, batch: StepBatch) -> dict[str, Callable[[], Any]]:
        """Returns the stages of a step, in order."""
        return {
            "forward and backward": lambda: self._gradients(batch),
            "clipping": lambda: clip_gradients(self.model.named_parameters(), self.config.trainer.clip_norm),
            "optimizer": self._update,
            "router balance": lambda: balance_routers(
                self.model, self.result.expert_loads, self.config.model.router_bias_rate
            ),
        }

    def _gradients(self, batch: StepBatch) -> None:
        self.result = accumulate_gradients(self.model, batch, lambda loss: loss.backward(), lambda sums: (sums, 1.0))

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, batch: StepBatch) -> None:
        """Takes a step."""
        for stage in self.stages(batch).values():
            stage()

    def flops(self, batch: StepBatch) -> float:
        """Returns the counted FLOPs of a step, as `arcforge-train` counts them for MFU."""
        per_token = training_flops_per_token(self.model, torch.cat([m.batch.positions_T + 1 for m in batch.micros]))
        mtp = self.result.mtp_tokens * self.config.model.mtp.depths * per_token.mtp_depth
        return batch.num_tokens * per_token.main + mtp


class TheirStep(Step):
    """The same sizes in transformers: SDPA, grouped products, bfloat16 by autocast, torch's fused AdamW."""

    def __init__(self, options: tuple[str, ...]) -> None:
        super().__init__(options, "auto")
        with tempfile.TemporaryDirectory() as folder:
            export_hf(self.model, folder, "deepseek_v3" if self.config.attention.name == "mla" else "glm_moe_dsa")
            self.theirs = Peer("sdpa", "grouped_mm").load(folder).to(device()).train()
        self.optimizer = torch.optim.AdamW(self.theirs.parameters(), lr=1e-4, fused=True)

    def stages(self, batch: StepBatch) -> dict[str, Callable[[], Any]]:
        """Returns the stages of a step, in order; it has no router balance."""
        clip = torch.nn.utils.clip_grad_norm_
        return {
            "forward and backward": lambda: self._gradients(batch),
            "clipping": lambda: clip(self.theirs.parameters(), self.config.trainer.clip_norm),
            "optimizer": self._update,
        }

    def _gradients(self, batch: StepBatch) -> None:
        [micro] = batch.micros
        rows = len(micro.batch.query_lengths())
        ids, labels = (x.view(rows, -1) for x in (micro.tokens_T, micro.targets_T))
        with torch.autocast(device(), torch.bfloat16):
            loss = self.theirs(input_ids=ids, labels=labels, shift_labels=labels, use_cache=False).loss
        loss.backward()
        self.result = StepResult({"loss": loss.detach()}, {})


def seconds_of(job: Callable[[], Any]) -> float:
    """Returns the seconds of a call and of the device's work for it."""
    wait()
    start = time.perf_counter()
    job()
    wait()
    return time.perf_counter() - start


def wait() -> None:
    """Waits for the device."""
    if device() == "cuda":
        torch.cuda.synchronize()


@contextmanager
def watching_waits() -> Iterator[Counter[str]]:
    """Counts, by line of code, the calls that make the host wait for the device."""
    found: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if device() == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if device() == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    for each in told:
        if "synchroniz" in str(each.message):
            found[f"{'/'.join(Path(each.filename).parts[-3:])}:{each.lineno}"] += 1


def run(name: str, quick: bool, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Returns rate, MFU, memory and the parts of a step; rows are halved while memory does not suffice."""
    options, kernels, rows, tokens = ITEMS[name]
    options, rows, tokens = (TINY, 1, 24) if quick and device() == "cpu" else (options, 1 if quick else rows, tokens)
    counted = count_parameters((config := compose(list(options))).model, config.attention)
    found: dict[str, Any] = {"parameters": counted.total_with_mtp, "active": counted.active}
    start = time.perf_counter()
    step = TheirStep(options) if kernels == "transformers" else Step(options, kernels)
    found |= {"build_s": time.perf_counter() - start, "rows": rows, "tokens": tokens}
    tell(found)
    while True:
        batch = random_batch(rows, tokens, step.config.model.vocab_size)
        try:
            found["first_s"] = seconds_of(lambda batch=batch: step.run(batch))
            break
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
            rows //= 2
            found["rows"] = rows
            step.optimizer.zero_grad()
            gc.collect()
            torch.cuda.empty_cache()
    seconds_of(lambda: step.run(batch))
    if device() == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = [seconds_of(lambda: step.run(batch)) for _ in range(2 if quick else 5)]
    flops, seconds = step.flops(batch), statistics.median(times)
    found |= {"step_s": seconds, "times_s": times, "tokens_per_s": batch.num_tokens / seconds, "flops": flops}
    found["mfu"] = flops / seconds / rates().flops_per_s
    found["matmul_tflops"] = rates().flops_per_s / 1e12
    if device() == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    found["losses"] = {key: float(value) for key, value in step.result.losses.items()}
    tell(found)
    found["stages_s"] = {stage: seconds_of(job) for stage, job in step.stages(batch).items()}
    with watching_waits() as waits:
        step.run(batch)
    found["host_waits"] = {"all": waits.total(), **dict(waits.most_common(12))}
    tell(found)
    choices = step.model.ops.choices.values()
    found["kernels_chosen"] = sorted({f"{choice.call.op}: {choice.kernel}" for choice in choices})
    if device() == "cuda":
        found["profile"] = profiled(lambda: step.run(batch))
    return found


def row(name: str, result: dict[str, Any]) -> str:
    """Returns lines of the table."""
    text = f"{name:<32}"
    if "step_s" in result:
        text += f"{result['tokens_per_s']:12,.0f} tokens/s  MFU {result['mfu']:6.1%}  {result['step_s']:7.3f} s  "
        text += f"{result.get('peak_gib', 0.0):6.1f} GiB  {result['rows']} x {result['tokens']}"
    for stage, seconds in result.get("stages_s", {}).items():
        text += f"\n    {stage:<24}{1e3 * seconds:9.1f} ms"
    about = result.get("profile", {})
    for kind, part in about.get("kinds", {}).items():
        text += f"\n    {kind:<24}{part['ms']:9.1f} ms {part['share']:6.1%} {part['calls']:7} calls"
    for kernel in about.get("top", []):
        text += f"\n      {kernel['ms']:9.2f} ms {kernel['calls']:6} x {kernel['name'][:110]}"
    if waits := result.get("host_waits"):
        text += f"\n    host waits: {waits}"
    return text + (f"\n    {result['error_text'][:400]}" if "error_text" in result else "")

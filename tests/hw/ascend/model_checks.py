"""Run by test_model.py in a process with a simulated NPU: trains and serves `tiny` with DSA, compared with the host.

The model has the sizes of attention that the operators are documented for. Prints JSON for the parts that are asked
for: errors, log-probs, and how often each operator ran.
"""

import json
import os
import sys

import torch

from arcforge_core.config.compose import compose
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.model.build import build_model
from arcforge_core.ops import Ops
from arcforge_core.testing.fake_chip.npu.library import install_npu
from arcforge_core.testing.model_checks import document_batch
from arcforge_core.train.step import StepBatch, accumulate_gradients
from arcforge_hw.ascend import layouts
from arcforge_hw.ascend.backend import Ascend
from arcforge_hw.configs import AscendConfig
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine

CHIP = install_npu()
SIZES = {
    "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "index_head_dim": 128, "index_n_heads": 8, "index_topk": 8, "num_hidden_layers": 2, "mtp.depths": 1,
}  # fmt: skip
PROMPTS, NEW_TOKENS = (41, 3), 5


def model_on(ascend, *overrides):
    sizes = [f"model.{name}={value}" for name, value in SIZES.items()]
    names = ["model=tiny", "attention=dsa", "attention.form=absorbed", "optimizer=torch_adamw"]
    config = compose([*names, *sizes, *overrides])
    torch.manual_seed(0)
    model = build_model(config.model, config.attention, Ops(ascend))
    return model if ascend is None else model.to("npu")


def calls():
    """Returns the calls of the vendor's operators since the last time."""
    ran = {name.split(".")[1]: count for name, count in CHIP.calls.items() if name.startswith("npu.")}
    CHIP.calls.clear()
    return ran


def gradients(ascend, dtype):
    """Returns the losses and the gradients of one step on packed documents, the indexer's loss included."""
    model = model_on(ascend, "attention.indexer_training=sparse")
    model.set_compute_dtype(dtype)
    step = StepBatch([document_batch(model.config, 0).to(model.device)])
    result = accumulate_gradients(model, step, torch.Tensor.backward, lambda values: (values, 1.0))
    grads = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    return {name: float(value) for name, value in result.losses.items()}, grads


def trained():
    """Returns, by parameter, the error of the NPU's gradients and of the host's in bfloat16, against float32."""
    (exact, truth), (_, host) = (gradients(None, dtype) for dtype in (torch.float32, torch.bfloat16))
    CHIP.calls.clear()
    losses, ours = gradients(Ascend(AscendConfig()), torch.bfloat16)

    def error(name, grads):
        return float((grads[name] - truth[name]).norm() / truth[name].norm())

    errors = {name: (error(name, ours), error(name, host)) for name in truth}
    return {"losses": {n: (losses[n], exact[n]) for n in exact}, "errors": errors, "calls": calls()}


PACKED = {"int4_columns": 0, "scale_bits": 0, "turned": 0}


def counted(name):
    """Returns a function of `layouts` that counts its calls."""
    function = getattr(layouts, name)

    def run(weight):
        PACKED[name] += 1
        return function(weight)

    return run


def engine(ascend, weights, index, *sizes):
    names = [f"attention.index_cache={index}", "model.initializer_range=0.05", *sizes]
    model = model_on(ascend, *names).eval().to(torch.bfloat16)
    options = {"cache_tokens": 512, "max_batch_tokens": 24, "max_running": 8, "overlap": False, "prefix_cache": False}
    return PagedEngine(PagedEngineConfig(weights=weights, **options), model)


def served(weights, index="auto", *sizes, **options):
    """Returns the log-probs of the NPU's greedy tokens, and the host's of the same tokens; prompts come in parts."""
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(512, (length,), generator=draw).tolist() for length in PROMPTS]
    CHIP.calls.clear()
    PACKED.update(dict.fromkeys(PACKED, 0))
    on_npu = engine(Ascend(AscendConfig(**options)), weights, index, *sizes)
    packed = dict(PACKED)
    outs = on_npu.generate(prompts, SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0))
    ran, during = calls(), {name: count - packed[name] for name, count in PACKED.items()}
    on_npu.close()
    host = engine(None, weights, index, *sizes)
    whole = [[*prompt, *out.token_ids] for prompt, out in zip(prompts, outs, strict=True)]
    scored = host.generate(whole, SamplingParams(max_new_tokens=1, temperature=0.0, prompt_logprobs=True))
    host.close()
    truth = [out.prompt_logprobs[-NEW_TOKENS:] for out in scored]
    return {"npu": [out.logprobs for out in outs], "host": truth, "calls": ran, "packed": packed, "in steps": during}


DEEPSEEK = ("model.hidden_size=1024", "model.q_lora_rank=1536", "model.qk_nope_head_dim=128")
DEEPSEEK += ("model.initializer_range=0.02",)  # a wider model with larger weights decides too much by a rounding
PARTS = {
    "trained": trained,
    "bf16": lambda: served("none"),
    "w4a8": lambda: served("w4a8"),
    "int8 keys": lambda: served("w8a8", "int8", quant_indexer=True),
    "prologue": lambda: served("none", "auto", *DEEPSEEK, mla_prologue="early"),
}
if __name__ == "__main__":
    for name in PACKED:
        setattr(layouts, name, counted(name))
    print(json.dumps({name: PARTS[name]() for name in sys.argv[1:]}), flush=True)
    os._exit(0)  # torch's threads of the backward pass sometimes abort an interpreter that exits

"""Renamed, moved and removed options of the previous version, each with one line that names its replacement."""

from __future__ import annotations

FAULTS = "faults are injected by engine=faulty of tests/support/faulty_engine.py, see docs/studies/reasoning_rl.md"

RENAMED = {
    "rollout.engine_noise": f"write engine=faulty engine.noise=VALUE: {FAULTS}",
    "rollout.engine_logprob_noise": f"write engine=faulty engine.logprob_noise=VALUE: {FAULTS}",
    "rollout.engine_topk": f"write engine=faulty engine.topk_bits=BITS: {FAULTS}",
    "rollout.engine_topk_bits": f"write engine=faulty engine.topk_bits=BITS: {FAULTS}",
    "ablation.further_rate": "removed: it is 0.1 (arcforge_attention.ablation.stages.FURTHER_RATE)",
    "ablation.warmup_share": "removed: it is 0.3 (arcforge_attention.ablation.stages.WARMUP_SHARE)",
    "ablation.warmup_rate": "removed: it is 4 (arcforge_attention.ablation.stages.WARMUP_RATE)",
    "sandbox.disk_mb": "removed: sandboxes hold 256 MiB of files",
    "sandbox.output_kb": "removed: commands write 1024 KiB to standard output and to standard error at most",
    "engine.max_batch_size": "removed: engine=simple generates for 16 prompts at a time, engine=paged as memory allows",
    "engine.connect_seconds": "removed: a server has 10 seconds to accept a connection",
    "data.include_tests": "removed: data=stdlib leaves the library's own tests out",
    "optimizer.split_rope": "removed: a head's rotary rows belong to the same matrix as its other rows",
    "environment.factor_digits": "removed: the numbers in expressions have two digits",
}
"""Option, as written on a command line -> advice."""
FOREIGN = {
    "learning_rate": ["optimizer.lr"],
    "lr": ["optimizer.lr"],
    "wd": ["optimizer.weight_decay"],
    "batch_size": ["trainer.micro_batch_tokens", "engine.max_running", "micro_batch_tokens", "concurrency"],
    "per_device_train_batch_size": ["trainer.micro_batch_tokens"],
    "gradient_accumulation_steps": ["trainer.accumulate"],
    "max_seq_len": ["trainer.sequence_length", "engine.max_tokens", "sequence_length"],
    "block_size": ["trainer.sequence_length"],
    "seq_len": ["trainer.sequence_length", "sequence_length"],
    "max_length": ["trainer.sequence_length", "rollout.max_new_tokens", "max_new_tokens", "suite.max_new_tokens"],
    "steps": ["trainer.max_steps"],
    "max_iters": ["trainer.max_steps"],
    "num_train_epochs": ["trainer.max_tokens", "trainer.max_steps"],
    "epochs": ["trainer.max_tokens", "trainer.max_steps"],
    "max_grad_norm": ["trainer.clip_norm"],
    "bf16": ["trainer.precision"],
    "fp16": ["trainer.precision"],
    "dtype": ["trainer.precision", "engine.dtype", "dtype"],
    "gradient_checkpointing": ["trainer.activation_checkpointing"],
    "resume_from_checkpoint": ["resume"],
    "layers": ["model.num_hidden_layers"],
    "num_layers": ["model.num_hidden_layers"],
    "n_layer": ["model.num_hidden_layers"],
    "heads": ["model.num_attention_heads"],
    "n_head": ["model.num_attention_heads"],
    "hidden": ["model.hidden_size"],
    "d_model": ["model.hidden_size"],
    "n_embd": ["model.hidden_size"],
    "experts": ["model.n_routed_experts"],
    "num_experts": ["model.n_routed_experts"],
    "dataset": ["data", "data.paths", "files"],
    "train_file": ["data.paths"],
    "model": ["checkpoint", "init"],
    "model_path": ["checkpoint", "init"],
    "model_name_or_path": ["checkpoint", "init"],
    "pretrained": ["checkpoint", "init"],
    "checkpoint": ["init"],
    "init": ["checkpoint"],
    "quantize": ["engine.weights"],
    "quantization": ["engine.weights"],
    "served_model_name": ["served_name"],
    "tensor_parallel_size": ["dp"],
    "data_parallel_size": ["dp"],
    "gpu_memory_utilization": ["engine.cache_mb"],
    "max_model_len": ["engine.max_tokens"],
    "max_num_seqs": ["engine.max_running"],
    "api_key": ["keys_file"],
    "tasks": ["suite"],
    "num_generations": ["rollout.group_size"],
    "group_size": ["rollout.group_size"],
    "reward_funcs": ["environment"],
    "beta": ["algorithm.kl"],
    "output": ["output_dir"],
    "out": ["output_dir"],
    "run_name": ["name"],
    "device": ["hardware"],
    "wandb": ["logger"],
    "report_to": ["logger"],
}
"""Names of other programs -> fields and groups of ours, the likeliest first; a command has some of them."""


def renamed(path: str) -> str | None:
    """Returns the advice for an option of the previous version in any section; None for all others."""
    return next((advice for old, advice in RENAMED.items() if f".{path}".endswith(f".{old}")), None)

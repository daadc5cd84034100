"""Names that people bring from other programs, and what they are called here, or why there is nothing of the kind."""

from __future__ import annotations

import re
from collections.abc import Container

FOREIGN = {
    "learning_rate": ["optimizer.lr"],
    "lr": ["optimizer.lr"],
    "wd": ["optimizer.weight_decay"],
    "batch_size": [
        "suite.micro_batch_tokens",
        "trainer.micro_batch_tokens",
        "engine.max_running",
        "concurrency",
    ],
    "per_device_train_batch_size": ["trainer.micro_batch_tokens"],
    "gradient_accumulation_steps": ["trainer.accumulate"],
    "max_seq_len": ["trainer.sequence_length", "suite.sequence_length"],
    "block_size": ["trainer.sequence_length"],
    "seq_len": ["trainer.sequence_length", "suite.sequence_length"],
    "max_length": ["trainer.sequence_length", "rollout.max_new_tokens", "max_new_tokens", "suite.max_new_tokens"],
    "steps": ["trainer.max_steps"],
    "max_iters": ["trainer.max_steps"],
    "num_train_epochs": ["trainer.max_tokens", "trainer.max_steps"],
    "epochs": ["trainer.max_tokens", "trainer.max_steps"],
    "max_grad_norm": ["trainer.clip_norm"],
    "grad_clip": ["trainer.clip_norm"],
    "clip": ["trainer.clip_norm"],
    "warmup_steps": ["schedule.warmup"],
    "warmup_ratio": ["schedule.warmup"],
    "bf16": ["trainer.precision"],
    "fp16": ["trainer.precision"],
    "dtype": ["trainer.precision", "dtype"],
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
    "max_num_seqs": ["engine.max_running"],
    "api_key": ["api_key_file"],
    "tasks": ["suite"],
    "env": ["environment"],
    "n": ["rollout.group_size", "samples", "count"],
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
    "max_lr": ["optimizer.lr"],
    "lr_scheduler_type": ["schedule"],
    "lr_scheduler": ["schedule"],
    "adam_beta1": ["optimizer.beta1"],
    "adam_beta2": ["optimizer.beta2"],
    "adam_epsilon": ["optimizer.eps"],
    "gradient_clip_val": ["trainer.clip_norm"],
    "gradient_clipping": ["trainer.clip_norm"],
    "save_total_limit": ["trainer.keep_checkpoints"],
    "load_from": ["init", "checkpoint"],
    "init_from": ["init", "checkpoint"],
    "lora": ["adapter"],
    "peft": ["adapter"],
    "lora_r": ["adapter.rank"],
    "lora_rank": ["adapter.rank"],
    "lora_alpha": ["adapter.alpha"],
    "lora_dropout": ["adapter.dropout"],
    "target_modules": ["adapter.targets"],
    "iterations": ["trainer.max_steps", "trainer.updates"],
    "ppo_epochs": ["trainer.updates"],
    "completion_length": ["rollout.max_new_tokens", "max_new_tokens"],
    "response_length": ["rollout.max_new_tokens", "max_new_tokens"],
    "completions": ["rollout.group_size"],
    "vllm": ["engine"],
    "kl_coef": ["algorithm.kl"],
    "init_kl_coef": ["algorithm.kl"],
    "kl_loss_coef": ["algorithm.kl"],
    "epsilon": ["algorithm.clip_high"],
    "epsilon_high": ["algorithm.clip_high"],
    "clip_ratio": ["algorithm.clip_high"],
    "cliprange": ["algorithm.clip_high"],
    "loss_type": ["algorithm"],
    "adv_estimator": ["algorithm"],
    "advantage_estimator": ["algorithm"],
    "tp": ["dp"],
    "tp_size": ["dp"],
    "dp_size": ["dp"],
    "ngl": ["hardware"],
    "gpu_layers": ["hardware"],
    "hf": ["checkpoint"],
    "hf_repo": ["checkpoint"],
    "model_args": ["checkpoint"],
    "model_id": ["checkpoint", "init"],
    "mem_fraction_static": ["engine.cache_mb"],
    "swap_space": ["engine.tier_mb"],
    "running_requests": ["engine.max_running"],
    "parallel": ["engine.max_running"],
    "batched_tokens": ["engine.max_batch_tokens"],
    "chunked_prefill_size": ["engine.max_batch_tokens"],
    "speculative_num_tokens": ["engine.draft_tokens"],
    "speculative_tokens": ["engine.draft_tokens"],
    "speculative_num_draft_tokens": ["engine.draft_tokens"],
    "draft": ["engine.draft_tokens"],
    "base_url": ["url"],
    "request_rate": ["rate"],
    "prompts": ["workload.requests"],
    "num_samples": ["samples", "count"],
    "outtype": ["dtype"],
    "output_folder": ["output_dir"],
    "experiment_name": ["name"],
    "config_name": ["experiment", "recipe", "pipeline"],
}
"""Names of other programs -> fields and groups of ours, the likeliest first; a command has some of them."""
PREFIXES = re.compile(r"(?:num|max|total|use|enable|no|n)_")
"""Beginnings that programs put before the same name: ``num_epochs``, ``max_epochs``, ``total_epochs``."""
CADENCE = re.compile(
    r"(save|checkpoint|saving|eval|evaluation|test|val|log|logging)_(?:steps|interval|freq|every|iters)"
)
CADENCES = {"s": "checkpoint", "c": "checkpoint", "e": "eval", "t": "eval", "v": "eval", "l": "log"}

TORCHRUN = (
    "processes are started by torchrun, as in: torchrun --nproc-per-node=2 .venv/bin/arcforge-train experiment=mini"
)
LENGTH = "sequences may be as long as the checkpoint's max_position_embeddings; engine.cache_mb limits their memory"
TEMPLATE = "the chat template and its parser are those of the checkpoint's folder"
ADVICE = {
    **dict.fromkeys(("nproc_per_node", "nproc", "nnodes", "local_rank", "gpus", "devices", "num_gpus", "num_nodes",
                     "strategy", "num_processes", "world_size", "master_port", "n_gpus", "ddp"), ("trainer", TORCHRUN)),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"),
                    ("trainer", "batches come from memory-mapped files; no process loads them")),
    **dict.fromkeys(("max_model_len", "ctx_size", "context_length", "n_ctx", "max_seq_len", "max_total_tokens"),
                    ("port", LENGTH)),
    **dict.fromkeys(("reasoning_parser", "tool_call_parser", "chat_template", "jinja", "enable_auto_tool_choice"),
                    ("port", TEMPLATE)),
    "trust_remote_code": ("", "no code of a checkpoint is ever executed"),
    **dict.fromkeys(("num_fewshot", "fewshot"), ("suite", "make harnesses runs lm-eval against arcforge-serve")),
}  # fmt: skip
"""Names without a field of ours -> a field of the commands for which the advice holds, or nothing, and the advice."""
COMMANDS = {
    **dict.fromkeys(("sft", "finetune", "fine-tune"), "pipeline"),
    **dict.fromkeys(("grpo", "ppo", "rlhf", "reinforce"), "rl"),
    **dict.fromkeys(("chat", "api_server", "launch_server", "run", "server"), "serve"),
    **dict.fromkeys(("pretrain", "fit"), "train"),
    **dict.fromkeys(("evaluate", "test", "validate", "lm_eval"), "eval"),
    "export": "convert",
    **dict.fromkeys(("generate", "predict"), "sample"),
    **dict.fromkeys(("tokenize", "preprocess", "prepare"), "data"),
    "benchmark": "bench",
}
"""Commands of other programs -> ours."""


def meant_by(name: str, known: Container[str]) -> str | None:
    """Returns the field or group among `known` that a name of another program means, or None.

    Args:
        name: without sections, as ``num_train_epochs``.
        known: fields by dotted path, and groups.
    """
    names = [name]
    while match := PREFIXES.match(names[-1]):
        names.append(names[-1][match.end() :])
    candidates = [path for each in names for path in FOREIGN.get(each, [])]
    if cadence := CADENCE.fullmatch(name):
        candidates.insert(0, f"trainer.{CADENCES[cadence[1][0]]}_every")
    return next((path for path in candidates if path in known and path.rpartition(".")[2] != name), None)


def advice(name: str, known: Container[str]) -> str | None:
    """Returns what to do where `known`, the fields of a command, have nothing of the kind that a name means."""
    field, text = ADVICE.get(name, ("", ""))
    return text if text and (not field or field in known) else None

"""``engine=vllm``: vLLM's server, as read in vLLM 0.32; files are its own.

- Generation is ``POST /inference/v1/generate``, token ids in and out (``entrypoints/scale_out/token_in_token_out``);
  the server wants ``--enable-scale-out``. Events of a stream have new tokens only; a sequence that is aborted without
  new ones has none, and the prompt's log-probs are in whole replies only. Log-probs are the model's own with
  ``--logprobs-mode raw_logprobs``, the default.
- Weights: ``POST /pause``, ``POST /collective_rpc`` with ``reload_weights`` and a path (``v1/worker/gpu_worker.py``),
  ``POST /reset_prefix_cache``, ``POST /update_weight_version``, ``POST /resume`` (``entrypoints/rl/online``,
  ``entrypoints/serve/dev``); the server wants ``VLLM_SERVER_DEV_MODE=1``. Its ``/update_weights`` moves tensors between
  GPUs (NCCL, CUDA IPC) and wants a trainer on one.
- Figures are those of ``GET /metrics``; ``GET /is_paused`` is of the development mode.
- ``priority`` counts the other way there, and wants ``--scheduling-policy priority``. Its router reads
  ``X-Session-ID``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from arcforge_core.contracts.engine import SamplingParams, TopLogprobs
from arcforge_core.contracts.serving_engine import SESSION_HEADER, EngineStats
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import VllmEngineConfig
from arcforge_serving.engine.errors import RemoteError
from arcforge_serving.remote.client import UPDATE
from arcforge_serving.remote.engine import Answer, RemoteCall, check_biases, header_of
from arcforge_serving.remote.folder import FolderEngine


class VllmEngine(FolderEngine):
    """A server of vLLM; see `RemoteEngine`."""

    config: VllmEngineConfig
    unsupported = ("owner",)
    bounds: ClassVar = {
        "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "repetition_penalty": (1e-9, 2.0),
    }  # fmt: skip

    def __init__(self, config: VllmEngineConfig, model: CausalLM) -> None:
        super().__init__(config, model)

    def check(self, params: SamplingParams) -> None:
        """Refuses what vLLM cannot do; see `RemoteEngine.check`."""
        super().check(params)
        check_biases("vllm", params)
        if params.sampled_logprobs and params.temperature != 1.0:
            accepted = "must be 1 (rollout.temperature): engine=vllm reports log-probs at temperature 1"
            raise ConfigError("temperature", params.temperature, accepted)

    def _label(self) -> str:
        self._client.get("/v1/models")  # is there in every mode; the label is a matter of the development mode
        try:
            return str(self._client.get("/weight_info")["weight_version"])
        except ConfigError:
            return ""

    def _request(self, call: RemoteCall) -> tuple[str, dict[str, Any], dict[str, str]]:
        params = call.params
        sampling = {
            "n": 1, "max_tokens": params.max_new_tokens, "min_tokens": params.min_new_tokens,
            "temperature": params.temperature, "top_p": params.top_p,
            "top_k": params.top_k, "min_p": params.min_p, "seed": params.seed,
            "presence_penalty": params.presence_penalty, "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": params.repetition_penalty,
            "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
            "stop_token_ids": list(params.stop_token_ids), "ignore_eos": True, "detokenize": False,
            "logprobs": params.top_logprobs, "prompt_logprobs": params.top_logprobs if params.prompt_logprobs else None,
        }  # fmt: skip
        body = {"request_id": call.name, "token_ids": list(call.prompt), "sampling_params": sampling}
        further: dict[str, Any] = {"stream": call.streams, "cache_salt": call.salt, "priority": -call.priority}
        body |= {name: value for name, value in further.items() if value}
        if self.config.served_name is not None:
            body["model"] = self.config.served_name
        return "/inference/v1/generate", body, {SESSION_HEADER: header_of(call.session)} if call.session else {}

    def _read(self, call: RemoteCall, reply: Any) -> Answer:
        (choice,) = reply["choices"]
        content = (choice.get("logprobs") or {}).get("content") or []
        found = reply.get("prompt_logprobs") or []
        before = (call.answer if call.streams else None) or Answer([], [], [], None, "")
        spans = choice.get("weight_versions") or ()
        return Answer(
            [*before.ids, *choice["token_ids"]],
            [*before.logprobs, *(entry["logprob"] for entry in content)],
            [*before.top, *(likeliest(entry["top_logprobs"]) for entry in content)],
            ended=choice["finish_reason"],
            label=str(self.weight_version),
            spans=spans or before.spans,
            prompt=[entry[str(token)]["logprob"] for token, entry in zip(call.prompt[1:], found[1:], strict=False)],
            prompt_top=[likeliest(_entries(entry)) for entry in found[1:]],
            cached=((reply.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )

    async def _end(self, name: str) -> None:
        await self._client.ask("POST", "/inference/v1/abort_requests", {"request_ids": [name]})

    def _load(self, folder: Path, version: int) -> None:
        self._client.post("/pause", None, UPDATE, mode=self.config.pause)
        try:
            kwargs = {"weights_path": str(folder)}
            self._client.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs}, UPDATE)
            self._reset()
            self._client.post("/update_weight_version", {"new_version": str(version)}, UPDATE)
        finally:
            self._client.post("/resume", None, UPDATE)

    def _pause(self, mode: str) -> None:
        self._client.post("/pause", mode=mode)

    def resume(self) -> None:
        """Continues after `pause`."""
        self._client.post("/resume")

    def flush(self) -> None:
        """Drops all prefixes that the server has cached; running requests are recomputed.

        Raises:
            RemoteError: it still has some.
        """
        self._reset()

    def _reset(self) -> None:
        reset = self._client.post("/reset_prefix_cache", None, UPDATE, reset_running_requests=True)
        if not (reset or {}).get("success"):
            raise RemoteError("the prefix cache still holds entries of the old weights")

    @property
    def paused(self) -> bool:
        """Whether the server generates nothing."""
        return bool(self._client.get("/is_paused")["is_paused"])

    def stats(self) -> EngineStats:
        """Returns what ``/metrics`` and ``/is_paused`` say, summed over its engines."""
        text = self._client.text("/metrics")
        cache = labels(text, "vllm:cache_config_info")
        pages = int(cache.get("num_gpu_blocks", "0"))
        used = figure(text, "vllm:kv_cache_usage_perc")
        drafts, accepted = (figure(text, f"vllm:spec_decode_num_{n}_total") for n in ("drafts", "accepted_tokens"))
        return EngineStats(
            running=int(figure(text, "vllm:num_requests_running")),
            waiting=int(figure(text, "vllm:num_requests_waiting")),
            pages=pages, free_pages=round(pages * (1.0 - used)),
            page_size=int(cache.get("block_size", "0")),
            prefix_reuse={"True": "on", "False": "off"}.get(cache.get("enable_prefix_caching", ""), "unknown"),
            prompt_tokens=int(figure(text, "vllm:prefix_cache_queries_total")),
            cached_tokens=int(figure(text, "vllm:prefix_cache_hits_total")),
            preemptions=int(figure(text, "vllm:num_preemptions_total")),
            generated_tokens=int(figure(text, "vllm:generation_tokens_total")),
            drafts=int(drafts), draft_tokens=int(figure(text, "vllm:spec_decode_num_draft_tokens_total")),
            accepted_length=1.0 + accepted / drafts if drafts else 1.0,
            weight_version=self.weight_version, paused=self.paused,
        )  # fmt: skip


def figure(text: str, name: str) -> float:
    """Returns the sum of a metric's samples in Prometheus's text format; 0 where there is none."""
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^\n]*}})? (\S+)", text, re.MULTILINE))


def labels(text: str, name: str) -> dict[str, str]:
    """Returns the labels of a metric's first sample."""
    found = re.search(rf"^{re.escape(name)}{{([^\n]*)}}", text, re.MULTILINE)
    return dict(re.findall(r'(\w+)="([^"]*)"', found[1])) if found else {}


def likeliest(entries: Sequence[Mapping[str, Any]]) -> TopLogprobs:
    """Returns ids and log-probs, likeliest first; vLLM puts the sampled token first."""
    return sorted(((e["token_id"], e["logprob"]) for e in entries), key=lambda pair: -pair[1])


def _entries(found: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"token_id": int(token), **entry} for token, entry in found.items()]

"""``engine=vllm``: vLLM's server, as read in vLLM 0.32; files are its own.

- Generation is ``POST /inference/v1/generate``, token ids in and out (``entrypoints/scale_out/token_in_token_out``);
  the server wants ``--enable-scale-out``. Its log-probs are the model's own with ``--logprobs-mode raw_logprobs``, the
  default.
- Weights: ``POST /pause``, ``POST /collective_rpc`` with ``reload_weights`` and a path (``v1/worker/gpu_worker.py``),
  ``POST /reset_prefix_cache``, ``POST /update_weight_version``, ``POST /resume`` (``entrypoints/rl/online``,
  ``entrypoints/serve/dev``); the server wants ``VLLM_SERVER_DEV_MODE=1``. Its ``/update_weights`` moves tensors between
  GPUs (NCCL, CUDA IPC) and wants a trainer on one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from arcforge_core.contracts.engine import SamplingParams, TopLogprobs
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import VllmEngineConfig
from arcforge_serving.engine.errors import RemoteError
from arcforge_serving.remote.engine import Answer, RemoteEngine


class VllmEngine(RemoteEngine):
    """A server of vLLM; see `RemoteEngine`."""

    config: VllmEngineConfig
    bounds: ClassVar = {
        "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "repetition_penalty": (1e-9, 2.0),
    }  # fmt: skip

    def __init__(self, config: VllmEngineConfig, model: CausalLM) -> None:
        super().__init__(config, model)

    def check(self, params: SamplingParams) -> None:
        """Refuses what vLLM cannot do; see `RemoteEngine.check`."""
        super().check(params)
        if params.sampled_logprobs and params.temperature != 1.0:
            accepted = "must be 1 (rollout.temperature): engine=vllm reports log-probs at temperature 1"
            raise ConfigError("temperature", params.temperature, accepted)

    def _label(self) -> str:
        self._client.get("/v1/models")  # is there in every mode; the label is a matter of the development mode
        try:
            return str(self._client.get("/weight_info")["weight_version"])
        except ConfigError:
            return ""

    def _ask(self, prompt: Sequence[int], params: SamplingParams, request: str) -> Answer:
        sampling = {
            "n": 1, "max_tokens": params.max_new_tokens, "temperature": params.temperature, "top_p": params.top_p,
            "top_k": params.top_k, "min_p": params.min_p, "seed": params.seed,
            "presence_penalty": params.presence_penalty, "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": params.repetition_penalty,
            "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
            "stop_token_ids": list(params.stop_token_ids), "ignore_eos": True, "detokenize": False,
            "logprobs": params.top_logprobs, "prompt_logprobs": params.top_logprobs if params.prompt_logprobs else None,
        }  # fmt: skip
        body = {"request_id": request, "token_ids": list(prompt), "sampling_params": sampling}
        if self.config.served_name is not None:
            body["model"] = self.config.served_name
        reply = self._client.post("/inference/v1/generate", body)
        (choice,) = reply["choices"]
        content = (choice.get("logprobs") or {}).get("content") or []
        found = reply.get("prompt_logprobs") or []
        return Answer(
            list(choice["token_ids"]),
            [entry["logprob"] for entry in content],
            [likeliest(entry["top_logprobs"]) for entry in content],
            stopped=choice["finish_reason"] == "stop",
            aborted=choice["finish_reason"] == "abort",
            label=str(self.weight_version),
            spans=choice.get("weight_versions") or (),
            prompt=[entry[str(token)]["logprob"] for token, entry in zip(prompt[1:], found[1:], strict=False)],
            prompt_top=[likeliest(_entries(entry)) for entry in found[1:]],
            cached=((reply.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )

    def _abort(self, requests: Sequence[str]) -> None:
        self._client.post("/inference/v1/abort_requests", {"request_ids": list(requests)})

    def _install(self, folder: Path, version: int) -> None:
        self._client.post("/pause", mode=self.config.pause)
        try:
            kwargs = {"weights_path": str(folder)}
            self._client.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})
            reset = self._client.post("/reset_prefix_cache", reset_running_requests=True)
            if not (reset or {}).get("success"):
                raise RemoteError("the prefix cache still holds entries of the old weights")
            self._client.post("/update_weight_version", {"new_version": str(version)})
        except (RemoteError, ConfigError) as error:
            raise CheckpointError(f"weight update {version}: {error}") from error
        finally:
            self._client.post("/resume")


def likeliest(entries: Sequence[Mapping[str, Any]]) -> TopLogprobs:
    """Returns ids and log-probs, likeliest first; vLLM puts the sampled token first."""
    return sorted(((e["token_id"], e["logprob"]) for e in entries), key=lambda pair: -pair[1])


def _entries(found: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"token_id": int(token), **entry} for token, entry in found.items()]

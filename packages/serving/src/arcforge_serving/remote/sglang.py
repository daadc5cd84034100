"""``engine=sglang``: SGLang's server, as read in SGLang 0.5.23; files are named as in its ``srt``.

- Generation is its native ``POST /generate`` with ``input_ids`` (``managers/io_struct.py``). Ids are those of
  ``output_token_logprobs``, which hold the token that ended the sequence.
- Its log-probs are the model's own at temperature 1 and for greedy tokens. At other temperatures they are those of the
  sampled distribution, the model's own only where the server runs with ``SGLANG_RETURN_ORIGINAL_LOGPROB=1``
  (``layers/sampler.py``).
- A seed has an effect with ``--enable-deterministic-inference`` only; the engine says so when it is made.
- ``ignore_eos`` turns stop ids off too (``managers/schedule_batch.py``), so that the model's own end tokens must be
  among them where there are any.
- Its repetition penalty counts generated tokens only (``sampling/penaltylib``), ours the prompt's too: refused.
- Weights: ``POST /pause_generation``, ``POST /update_weights_from_disk`` with ``weight_version``,
  ``POST /continue_generation``. Its ``/update_weights_from_tensor`` takes pickles of shared tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from arcforge_core.console.progress import say
from arcforge_core.contracts.engine import SamplingParams, TopLogprobs
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import SglangEngineConfig
from arcforge_serving.engine.errors import RemoteError
from arcforge_serving.remote.engine import Answer, RemoteEngine


class SglangEngine(RemoteEngine):
    """A server of SGLang; see `RemoteEngine`."""

    config: SglangEngineConfig
    bounds: ClassVar = {
        "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "repetition_penalty": (1.0, 1.0),
    }  # fmt: skip

    def __init__(self, config: SglangEngineConfig, model: CausalLM) -> None:
        super().__init__(config, model)
        if not self._client.get("/server_info").get("enable_deterministic_inference"):
            say(f"{config.url}: seeds have no effect without --enable-deterministic-inference")

    def _label(self) -> str:
        return str(self._client.get("/model_info")["weight_version"])

    def check(self, params: SamplingParams) -> None:
        """Refuses what SGLang cannot do; see `RemoteEngine.check`."""
        super().check(params)
        if params.temperature in (0.0, 1.0) or self.config.original_logprobs != params.sampled_logprobs:
            return
        if params.sampled_logprobs:
            accepted = (
                "log-probs must be of the sampled distribution: start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"
            )
            raise ConfigError("temperature", params.temperature, f"{accepted}, with engine.original_logprobs=false")
        accepted = "log-probs would be another model's: start SGLang with SGLANG_RETURN_ORIGINAL_LOGPROB=1 and set"
        raise ConfigError("temperature", params.temperature, f"{accepted} engine.original_logprobs=true")

    def _ask(self, prompt: Sequence[int], params: SamplingParams, request: str) -> Answer:
        sampling = {
            "max_new_tokens": params.max_new_tokens, "temperature": params.temperature, "top_p": params.top_p,
            "top_k": params.top_k or -1, "min_p": params.min_p, "sampling_seed": params.seed,
            "presence_penalty": params.presence_penalty, "frequency_penalty": params.frequency_penalty,
            "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
            "stop_token_ids": list(params.stop_token_ids) or None, "ignore_eos": not params.stop_token_ids,
            "no_stop_trim": True, "skip_special_tokens": False,
        }  # fmt: skip
        reply = self._client.post(
            "/generate",
            {
                "rid": request, "input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True,
                "logprob_start_len": 0 if params.prompt_logprobs else -1, "top_logprobs_num": params.top_logprobs,
            },
        )  # fmt: skip
        meta = reply["meta_info"]
        drawn, ended = meta["output_token_logprobs"], meta["finish_reason"]
        if ended["type"] == "stop" and drawn[-1][1] not in params.stop_token_ids:
            accepted = f"must hold the model's own end token {drawn[-1][1]}: SGLang ends sequences there too"
            raise ConfigError("stop_token_ids", list(params.stop_token_ids), accepted)
        return Answer(
            [token for _, token, _ in drawn],
            [logprob for logprob, _, _ in drawn],
            [likeliest(entries) for entries in meta.get("output_top_logprobs") or ()],
            stopped=ended["type"] == "stop",
            aborted=ended["type"] == "abort",
            label=str(meta["weight_version"]),
            spans=meta.get("weight_versions") or (),
            prompt=[logprob for logprob, _, _ in (meta.get("input_token_logprobs") or ())[1:]],
            prompt_top=[likeliest(entries) for entries in (meta.get("input_top_logprobs") or ())[1:]],
            cached=meta.get("cached_tokens") or 0,
        )

    def _abort(self, requests: Sequence[str]) -> None:
        for request in requests:
            self._client.post("/abort_request", {"rid": request})

    def _install(self, folder: Path, version: int) -> None:
        self._client.post("/pause_generation", {"mode": self.config.pause})
        try:
            body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": True}
            self._client.post("/update_weights_from_disk", body)
        except (RemoteError, ConfigError) as error:
            raise CheckpointError(f"weight update {version}: {error}") from error
        finally:
            self._client.post("/continue_generation", {})


def likeliest(entries: Sequence[Any] | None) -> TopLogprobs:
    """Returns ids and log-probs, likeliest first, of SGLang's triples."""
    return sorted(((token, logprob) for logprob, token, *_ in entries or ()), key=lambda pair: -pair[1])

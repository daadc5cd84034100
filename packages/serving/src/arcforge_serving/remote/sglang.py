"""``engine=sglang``: SGLang's server, as read in SGLang 0.5.23; files are named as in its ``srt``.

- Generation is its native ``POST /generate`` with ``input_ids`` (``managers/io_struct.py``). Ids are those of
  ``output_token_logprobs``, which hold the token that ended the sequence. Events of a stream hold all tokens so far,
  with ``--incremental-streaming-output`` the new ones.
- Its log-probs are the model's own at temperature 1 and for greedy tokens. At other temperatures they are those of the
  sampled distribution, the model's own only where the server runs with ``SGLANG_RETURN_ORIGINAL_LOGPROB=1``
  (``layers/sampler.py``).
- A seed has an effect with ``--enable-deterministic-inference`` only; the engine says so when it is made.
- ``ignore_eos`` turns stop ids off too (``managers/schedule_batch.py``), so that the model's own end tokens must be
  among them where there are any.
- Its repetition penalty counts generated tokens only (``sampling/penaltylib``), ours the prompt's too: refused.
- Weights: ``POST /pause_generation``, ``POST /update_weights_from_disk`` with ``weight_version``,
  ``POST /continue_generation``. Pausing has the modes ``abort``, ``retract`` (recomputes running requests) and
  ``in_place``, and no route that says whether it is paused. Its ``/update_weights_from_tensor`` takes pickles of
  shared tensors.
- Figures are those of ``GET /v1/loads``. ``priority`` wants ``--enable-priority-scheduling``. Its router reads
  ``X-SMG-Routing-Key``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from arcforge_core.console.progress import say
from arcforge_core.contracts.engine import SamplingParams, TopLogprobs
from arcforge_core.contracts.serving_engine import EngineStats
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import SglangEngineConfig
from arcforge_serving.remote.client import UPDATE
from arcforge_serving.remote.engine import Answer, RemoteCall, check_biases, header_of
from arcforge_serving.remote.folder import FolderEngine

ROUTING = "X-SMG-Routing-Key"
"""Header with a session's name, of SGLang's router."""


class SglangEngine(FolderEngine):
    """A server of SGLang; see `RemoteEngine`."""

    config: SglangEngineConfig
    unsupported = ("owner",)
    bounds: ClassVar = {
        "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "repetition_penalty": (1.0, 1.0),
    }  # fmt: skip

    def __init__(self, config: SglangEngineConfig, model: CausalLM) -> None:
        super().__init__(config, model)
        info, self._paused = self._client.get("/server_info"), False
        self._incremental = bool(info.get("incremental_streaming_output"))
        if not info.get("enable_deterministic_inference"):
            say(f"{config.url}: seeds have no effect without --enable-deterministic-inference")

    def _label(self) -> str:
        return str(self._client.get("/model_info")["weight_version"])

    def check(self, params: SamplingParams) -> None:
        """Refuses what SGLang cannot do; see `RemoteEngine.check`."""
        super().check(params)
        check_biases("sglang", params)
        if params.temperature in (0.0, 1.0) or self.config.original_logprobs != params.sampled_logprobs:
            return
        if params.sampled_logprobs:
            accepted = (
                "log-probs must be of the sampled distribution: start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"
            )
            raise ConfigError("temperature", params.temperature, f"{accepted}, with engine.original_logprobs=false")
        accepted = "log-probs would be another model's: start SGLang with SGLANG_RETURN_ORIGINAL_LOGPROB=1 and set"
        raise ConfigError("temperature", params.temperature, f"{accepted} engine.original_logprobs=true")

    def _request(self, call: RemoteCall) -> tuple[str, dict[str, Any], dict[str, str]]:
        params = call.params
        sampling = {
            "max_new_tokens": params.max_new_tokens, "min_new_tokens": params.min_new_tokens,
            "temperature": params.temperature, "top_p": params.top_p,
            "top_k": params.top_k or -1, "min_p": params.min_p, "sampling_seed": params.seed,
            "presence_penalty": params.presence_penalty, "frequency_penalty": params.frequency_penalty,
            "logit_bias": {str(token): bias for token, bias in params.logit_bias.items()} or None,
            "stop_token_ids": list(params.stop_token_ids) or None, "ignore_eos": not params.stop_token_ids,
            "no_stop_trim": True, "skip_special_tokens": False,
        }  # fmt: skip
        body = {
            "rid": call.name, "input_ids": list(call.prompt), "sampling_params": sampling, "return_logprob": True,
            "logprob_start_len": 0 if params.prompt_logprobs else -1, "top_logprobs_num": params.top_logprobs,
        }  # fmt: skip
        further: dict[str, Any] = {"stream": call.streams, "extra_key": call.salt, "priority": call.priority}
        body |= {name: value for name, value in further.items() if value}
        return "/generate", body, {ROUTING: header_of(call.session)} if call.session else {}

    def _read(self, call: RemoteCall, reply: Any) -> Answer:
        params, before = call.params, Answer([], [], [], None, "")
        if call.streams and self._incremental and call.answer is not None:
            before = call.answer
        meta = reply["meta_info"]
        drawn, ended = meta["output_token_logprobs"], (meta["finish_reason"] or {}).get("type")
        if ended == "stop" and drawn[-1][1] not in params.stop_token_ids:
            accepted = f"must hold the model's own end token {drawn[-1][1]}: SGLang ends sequences there too"
            raise ConfigError("stop_token_ids", list(params.stop_token_ids), accepted)
        return Answer(
            [*before.ids, *(token for _, token, _ in drawn)],
            [*before.logprobs, *(logprob for logprob, _, _ in drawn)],
            [*before.top, *(likeliest(entries) for entries in meta.get("output_top_logprobs") or ())],
            ended=ended,
            label=str(meta["weight_version"]),
            spans=meta.get("weight_versions") or (),
            prompt=[logprob for logprob, _, _ in (meta.get("input_token_logprobs") or ())[1:]],
            prompt_top=[likeliest(entries) for entries in (meta.get("input_top_logprobs") or ())[1:]],
            cached=meta.get("cached_tokens") or 0,
        )

    async def _end(self, name: str) -> None:
        await self._client.ask("POST", "/abort_request", {"rid": name})

    def _load(self, folder: Path, version: int) -> None:
        self._client.post("/pause_generation", {"mode": self.config.pause}, UPDATE)
        try:
            body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": True}
            self._client.post("/update_weights_from_disk", body, UPDATE)
        finally:
            self._client.post("/continue_generation", {}, UPDATE)

    def _pause(self, mode: str) -> None:
        if mode == "wait":  # it has no such mode: further requests wait here meanwhile
            self._client.run(self._finish_all())
        self._client.post("/pause_generation", {"mode": "abort" if mode == "abort" else "in_place"})
        self._paused = True

    async def _finish_all(self) -> None:
        calls = list(self._calls)
        await asyncio.gather(*(call.task for call in calls if call.task is not None), return_exceptions=True)

    def resume(self) -> None:
        """Continues after `pause`."""
        self._client.post("/continue_generation", {})
        self._paused = False

    def flush(self) -> None:
        """Drops all prefixes that the server has cached.

        Raises:
            ConfigError: requests are running there.
        """
        self._client.text("/flush_cache", "POST")

    @property
    def paused(self) -> bool:
        """Whether this engine has paused the server."""
        return self._paused

    def stats(self) -> EngineStats:
        """Returns what ``/v1/loads`` says, summed over its ranks; a page is a token."""
        loads = self._client.get("/v1/loads")["loads"]
        tokens, used = (sum(load[name] for load in loads) for name in ("max_total_num_tokens", "num_used_tokens"))
        return EngineStats(
            running=sum(load["num_running_reqs"] for load in loads),
            waiting=sum(load["num_waiting_reqs"] for load in loads),
            pages=tokens, free_pages=tokens - used, page_size=1,
            weight_version=self.weight_version, paused=self._paused,
        )  # fmt: skip


def likeliest(entries: Sequence[Any] | None) -> TopLogprobs:
    """Returns ids and log-probs, likeliest first, of SGLang's triples."""
    return sorted(((token, logprob) for logprob, token, *_ in entries or ()), key=lambda pair: -pair[1])

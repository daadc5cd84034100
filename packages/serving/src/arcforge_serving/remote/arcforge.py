"""``engine=arcforge``: a server of ``arcforge-serve``, one engine or several with its router.

- Generation is ``POST /v1/rl/generate``, which is `ServingEngine.submit` over HTTP; ``X-Session-Id`` keeps a rollout on
  its engine.
- Weights: ``POST /v1/rl/update_weights/tensors`` uploads them, ``POST /v1/rl/update_weights`` reads them from a folder
  that both see (``engine.weights_dir``), each with version and checksum.
- All routes need an admin key.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from arcforge_core.checkpoint.pretrained import own_config
from arcforge_core.checkpoint.shards import WEIGHTS, save_tensors
from arcforge_core.contracts.engine import GenerationOutput, PartialUpdateError, UnfinishedUpdateError
from arcforge_core.contracts.experts import experts_of
from arcforge_core.contracts.serving_engine import SESSION_HEADER, EngineLimits, EngineStats
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.atomic import replacing
from arcforge_core.files.find import CONFIG
from arcforge_core.files.rundir import write_json
from arcforge_core.generation.weights import checksum as checksum_of
from arcforge_core.model.adapt.low_rank import is_low_rank, without_adapters
from arcforge_serving.configs import ArcforgeEngineConfig
from arcforge_serving.engine.errors import RemoteError
from arcforge_serving.remote.client import UPDATE
from arcforge_serving.remote.engine import Answer, RemoteCall, RemoteEngine, header_of
from arcforge_serving.remote.folder import weights_folder

RL = "/v1/rl"
SENT = (
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop_token_ids", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "top_logprobs", "prompt_logprobs",
    "sampled_logprobs", "experts_from",
)  # fmt: skip
"""Fields of `SamplingParams` that the server gets."""
READ = ("token_ids", "logprobs", "top_logprobs", "finish_reason", "weight_version", "weight_versions",
        "prompt_logprobs", "prompt_top_logprobs", "cached_tokens")  # fmt: skip
FURTHER = tuple(f.name for f in fields(GenerationOutput) if f.name not in READ)


class ArcforgeEngine(RemoteEngine):
    """A server of ``arcforge-serve``; see `RemoteEngine`."""

    config: ArcforgeEngineConfig
    bounds: ClassVar = {}
    may_record_experts: ClassVar = True
    takes_adapters: ClassVar = True

    def _label(self) -> str:
        return str(self._status()["weight_version"])

    def _status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get(f"{RL}/status")
        return found

    def _request(self, call: RemoteCall) -> tuple[str, dict[str, Any], dict[str, str]]:
        body = {"prompt": list(call.prompt), **{name: getattr(call.params, name) for name in SENT}}
        further: dict[str, Any] = {
            "stream": call.streams,
            "priority": call.priority,
            "owner": call.owner,
            "salt": call.salt,
        }
        body |= {name: value for name, value in further.items() if value}
        headers = {"X-Request-Id": call.name}
        return f"{RL}/generate", body, headers | ({SESSION_HEADER: header_of(call.session)} if call.session else {})

    def _read(self, call: RemoteCall, reply: Any) -> Answer:
        if call.streams:
            before = call.answer or Answer([], [], [], None, str(self.weight_version))
            tokens = reply["tokens"]
            ids = [*before.ids, *(id_ for id_, _, _ in tokens)]
            logprobs = [*before.logprobs, *(logprob for _, logprob, _ in tokens)]
            tops = [*before.top, *(_pairs(top) for _, _, top in tokens)]
            if reply.get("finish_reason") is None:
                return Answer(ids, logprobs, tops, None, before.label)
        else:
            ids, logprobs = reply["token_ids"], reply["logprobs"]
            tops = [_pairs(top) for top in reply["top_logprobs"]]
        spans, start = [], 0
        for version, count in reply["weight_versions"]:
            spans.append({"version": version, "start": start, "end": start + count})
            start += count
        return Answer(
            ids, logprobs, tops, reply["finish_reason"], str(reply["weight_version"]), spans, reply["prompt_logprobs"],
            [_pairs(top) for top in reply["prompt_top_logprobs"]], reply["cached_tokens"],
            {**{name: reply[name] for name in FURTHER}, "experts": reply["experts"] and experts_of(reply["experts"])},
        )  # fmt: skip

    async def _end(self, name: str) -> None:
        await self._client.ask("POST", f"{RL}/abort", {"request_id": name})

    # ---- the server --------------------------------------------------------------------------------------------------

    @cached_property
    def limits(self) -> EngineLimits:
        """The largest request that the server accepts."""
        return EngineLimits(**self._status()["limits"])

    def _pause(self, mode: str) -> None:
        self._client.post(f"{RL}/pause", {"mode": mode})

    def resume(self) -> None:
        """Continues after `pause`."""
        self._client.post(f"{RL}/resume")

    def flush(self) -> None:
        """Drops all prefixes that the server has cached; running requests keep their own."""
        self._client.post(f"{RL}/flush")

    def stats(self) -> EngineStats:
        """Returns state and counters, summed over its engines."""
        status = self._status()
        return EngineStats(**{field.name: status[field.name] for field in fields(EngineStats)})

    # ---- weights -----------------------------------------------------------------------------------------------------

    def update_weights(
        self,
        state: Mapping[str, Tensor],
        *,
        version: int | None = None,
        checksum: str | None = None,
        reset: bool = False,
    ) -> None:
        """Gives the server a state dict; see the contract.

        Raises:
            PartialUpdateError: one of several engines refused; `weight_version` is that of the others.
            UnfinishedUpdateError: the server broke off, or did not answer in time. `weight_version` is what it says it
                has; if it says nothing, that of before.
            CheckpointError: see the contract.
        """
        try:
            super().update_weights(state, version=version, checksum=checksum, reset=reset)
        except PartialUpdateError as error:
            self.weight_version = error.version
            raise

    def _install(self, staged: Mapping[str, Tensor], version: int, reset: bool) -> None:
        what, checksum = f"weight update {version}", checksum_of(staged)
        try:
            reply = self._hand_over(staged, version, checksum, reset)
        except ConfigError as error:  # refused: nothing has changed
            raise CheckpointError(f"{what}: {error}") from error
        except RemoteError as error:  # it may have been done
            self._find_out(what, version, error)
            return
        if refused := reply.get("refused"):
            raise PartialUpdateError(version, refused)

    def _hand_over(self, staged: Mapping[str, Tensor], version: int, checksum: str, reset: bool) -> dict[str, Any]:
        adapters = is_low_rank(staged) and not without_adapters(staged)
        if self.config.weights_dir is None or is_low_rank(staged):
            with tempfile.TemporaryDirectory(prefix="arcforge-weights-") as temporary:
                file = Path(temporary) / WEIGHTS
                save_tensors(dict(staged), file)
                query: dict[str, Any] = {"version": version, "checksum": checksum}
                query |= {name: True for name, set_ in (("adapters", adapters), ("reset", reset)) if set_}
                uploaded: dict[str, Any] = self._client.upload(f"{RL}/update_weights/tensors", file, **query)
                return uploaded
        folder = weights_folder(self.config.weights_dir) / f"version-{version}"
        with replacing(folder, marker=CONFIG) as partial:
            write_json(partial / CONFIG, own_config(self.model.config, self.model.attention))
            save_tensors(dict(staged), partial / WEIGHTS)
        body = {"path": str(folder), "version": version, "checksum": checksum, "reset": reset}
        read: dict[str, Any] = self._client.post(f"{RL}/update_weights", body, UPDATE)
        for older in folder.parent.glob("version-*"):  # a server that restarts reads the last one again
            if older != folder:
                shutil.rmtree(older)
        return read

    def _find_out(self, what: str, version: int, error: RemoteError) -> None:
        """Asks which weights the server has after an update that broke off; returns if it has the new ones.

        Raises:
            UnfinishedUpdateError: it has not.
        """
        try:
            found = int(self._label())
        except (RemoteError, ConfigError) as silence:
            raise UnfinishedUpdateError(f"{what}: {error}; which weights it has is unknown: {silence}") from error
        if found != version:
            self.weight_version = found
            raise UnfinishedUpdateError(f"{what}: {error}; it has version {found}") from error


def _pairs(top: Any) -> list[tuple[int, float]]:
    return [(token, logprob) for token, logprob in top]

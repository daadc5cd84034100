"""Stand-ins for the servers of vLLM and SGLang, for tests: their wire shapes over real HTTP, around our engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.base import RequestResponseEndpoint

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams, TopLogprobs
from arcforge_core.errors import ArcforgeError
from arcforge_core.generation.engine import SimpleEngine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.server.gate.listening import listen, url

Json = dict[str, Any]


class FakeServer:
    """What both have.

    Args:
        model: generates; new weights go into it.
        eos: the model's own end token.

    Attributes:
        faults: answers to the next requests in place of the right ones; None is the right one.
        calls: paths and bodies that came.
        label: version of the weights.
    """

    def __init__(self, model: CausalLM, eos: int | None = None) -> None:
        self.engine, self.eos = SimpleEngine(SimpleEngineConfig(), model), eos
        self.faults: deque[Response | None] = deque()
        self.calls: list[tuple[str, Any]] = []
        self.label = "default"
        self._one_at_a_time = threading.Lock()
        self.app = FastAPI()

        @self.app.middleware("http")
        async def look(request: Request, following: RequestResponseEndpoint) -> Response:
            if request.method == "POST":
                self.calls.append((request.url.path, await request.body()))
                fault = self.faults.popleft() if self.faults else None
                if fault is not None:
                    return fault
            return await following(request)

    def run(self, ids: Sequence[int], params: SamplingParams) -> GenerationOutput:
        """Generates one sequence."""
        with self._one_at_a_time:
            return self.engine.generate([ids], params)[0]

    def load(self, folder: str) -> None:
        """Reads weights."""
        with self._one_at_a_time:
            self.engine.update_weights(load_pretrained(folder).state_dict())


class FakeVllm(FakeServer):
    """Answers as vLLM 0.32 with ``--enable-scale-out`` and ``VLLM_SERVER_DEV_MODE=1``."""

    def __init__(self, model: CausalLM, eos: int | None = None) -> None:
        super().__init__(model, eos)
        app = self.app
        app.get("/v1/models")(lambda: {"object": "list", "data": [{"id": "fake"}]})
        app.get("/weight_info")(lambda: {"weight_version": self.label})
        app.post("/inference/v1/generate")(self.generate)
        app.post("/inference/v1/abort_requests")(lambda: Response())
        app.post("/pause")(lambda mode: {"status": "paused"})
        app.post("/resume")(lambda: {"status": "resumed"})
        app.post("/reset_prefix_cache")(lambda reset_running_requests=False: {"success": True})
        app.post("/collective_rpc")(self.collective_rpc)
        app.post("/update_weight_version")(self.name_version)

    def generate(self, body: Json) -> Json:
        """``/inference/v1/generate``."""
        given = body["sampling_params"]
        stops = [*given["stop_token_ids"], *([] if given["ignore_eos"] or self.eos is None else [self.eos])]
        prompt_logprobs = given["prompt_logprobs"] is not None
        params = SamplingParams(
            given["max_tokens"], given["temperature"], given["top_p"], given["top_k"], given["min_p"], tuple(stops),
            given["seed"], presence_penalty=given["presence_penalty"], frequency_penalty=given["frequency_penalty"],
            repetition_penalty=given["repetition_penalty"],
            logit_bias={int(token): bias for token, bias in (given["logit_bias"] or {}).items()},
            top_logprobs=given["logprobs"], prompt_logprobs=prompt_logprobs,
        )  # fmt: skip
        output = self.run(body["token_ids"], params)
        tops = output.top_logprobs or [[] for _ in output.token_ids]
        content = [
            {**entry(token, logprob), "top_logprobs": [entry(*pair) for pair in first(token, logprob, top)]}
            for token, logprob, top in zip(output.token_ids, output.logprobs, tops, strict=True)
        ]
        found: list[Json | None] = [None]
        prompt_tops = output.prompt_top_logprobs or [[] for _ in output.prompt_logprobs]
        for token, logprob, top in zip(body["token_ids"][1:], output.prompt_logprobs, prompt_tops, strict=False):
            found.append({str(t): {"logprob": value} for t, value in first(token, logprob, top)})
        span = {"version": self.label, "start": 0, "end": len(output.token_ids)}
        choice = {
            "index": 0, "finish_reason": output.finish_reason, "stop_reason": None, "token_ids": output.token_ids,
            "weight_versions": [span], "logprobs": {"content": content},
        }  # fmt: skip
        usage = {"prompt_tokens": len(body["token_ids"]), "prompt_tokens_details": None}
        logprobs = found if prompt_logprobs else None
        return {"request_id": body["request_id"], "choices": [choice], "prompt_logprobs": logprobs, "usage": usage}

    def collective_rpc(self, body: Json) -> Response:
        """``/collective_rpc``."""
        assert body["method"] == "reload_weights"
        try:
            self.load(body["kwargs"]["weights_path"])
        except ArcforgeError as error:
            return JSONResponse({"error": {"message": str(error), "type": "InternalServerError"}}, 500)
        return JSONResponse({"results": [None]})

    def name_version(self, body: Json) -> Json:
        """``/update_weight_version``."""
        self.label = body["new_version"]
        return {"success": True, "new_version": self.label}


class FakeSglang(FakeServer):
    """Answers as SGLang 0.5.23 with ``--enable-deterministic-inference``, SGLANG_RETURN_ORIGINAL_LOGPROB=1."""

    def __init__(self, model: CausalLM, eos: int | None = None) -> None:
        super().__init__(model, eos)
        app = self.app
        app.get("/model_info")(lambda: {"model_path": "fake", "weight_version": self.label})
        app.get("/server_info")(lambda: {"enable_deterministic_inference": True})
        app.post("/generate")(self.generate)
        app.post("/abort_request")(lambda: Response())
        app.post("/pause_generation")(lambda: {"status": "ok"})
        app.post("/continue_generation")(lambda: {"status": "ok"})
        app.post("/update_weights_from_disk")(self.update)

    def generate(self, body: Json) -> Json:
        """``/generate``."""
        given = body["sampling_params"]
        eos = [] if self.eos is None else [self.eos]
        stops = () if given["ignore_eos"] else (*(given["stop_token_ids"] or ()), *eos)
        params = SamplingParams(
            given["max_new_tokens"], given["temperature"], given["top_p"], max(given["top_k"], 0), given["min_p"],
            stops, given["sampling_seed"], presence_penalty=given["presence_penalty"],
            frequency_penalty=given["frequency_penalty"],
            logit_bias={int(token): bias for token, bias in (given["logit_bias"] or {}).items()},
            top_logprobs=body["top_logprobs_num"], prompt_logprobs=body["logprob_start_len"] == 0,
        )  # fmt: skip
        output = self.run(body["input_ids"], params)
        stopped = output.finish_reason == "stop"
        reason = {"type": "stop", "matched": output.token_ids[-1]} if stopped else {"type": "length", "length": 1}
        meta: Json = {
            "id": body["rid"], "finish_reason": reason, "prompt_tokens": len(body["input_ids"]),
            "weight_version": self.label, "cached_tokens": 0,
            "output_token_logprobs": triples(output.token_ids, output.logprobs),
            "output_top_logprobs": [triples(*zip(*top, strict=True)) for top in output.top_logprobs],
        }  # fmt: skip
        if params.prompt_logprobs:
            begin = [None, body["input_ids"][0], None]
            meta["input_token_logprobs"] = [begin, *triples(body["input_ids"][1:], output.prompt_logprobs)]
            tops = [triples(*zip(*top, strict=True)) for top in output.prompt_top_logprobs]
            meta["input_top_logprobs"] = [None, *tops]
        return {"text": "", "output_ids": output.token_ids[: -1 if stopped else None], "meta_info": meta}

    def update(self, body: Json) -> Response:
        """``/update_weights_from_disk``."""
        try:
            self.load(body["model_path"])
        except ArcforgeError as error:
            return JSONResponse({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        self.label = body["weight_version"]
        return JSONResponse({"success": True, "message": "Succeeded", "num_paused_requests": 0})


def entry(token: int, logprob: float) -> Json:
    """A token in vLLM's words."""
    return {"token_id": token, "logprob": logprob, "rank": None}


def first(token: int, logprob: float, top: TopLogprobs) -> TopLogprobs:
    """The sampled token, then the others."""
    return [(token, logprob), *(pair for pair in top if pair[0] != token)]


def triples(tokens: Sequence[int], logprobs: Sequence[float]) -> list[list[Any]]:
    """Tokens in SGLang's words."""
    return [[logprob, token, None] for token, logprob in zip(tokens, logprobs, strict=True)]


@contextmanager
def serving(server: FakeServer) -> Iterator[str]:
    """Yields the address of a server on a port of this machine."""
    running = uvicorn.Server(uvicorn.Config(server.app, log_level="error"))
    with listen("127.0.0.1", 0) as socket:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [socket]})
        thread.start()
        try:
            yield url(socket)
        finally:
            running.should_exit = True
            thread.join()

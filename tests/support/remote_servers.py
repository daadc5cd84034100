"""Imitations of vLLM's and SGLang's servers for tests: their wire formats over real HTTP, around our engine."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.middleware.base import RequestResponseEndpoint

from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.contracts.engine import SamplingParams, Token, TopLogprobs
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine
from arcforge_serving.engine.stream import Stream
from arcforge_serving.server.gate.listening import listen, url

Json = dict[str, Any]


class FakeServer:
    """What both have.

    Args:
        model: generates; new weights go into it.
        eos: the model's own end token.

    Attributes:
        faults: answers to the next requests in place of the right ones; None is the right one.
        calls, headers: paths and bodies that came, and their headers.
        open: sequences that have not ended, by name.
        label: version of the weights.
    """

    def __init__(self, model: CausalLM, eos: int | None = None) -> None:
        self.engine, self.eos = PagedEngine(PagedEngineConfig(cache_tokens=4096), model), eos
        self.engine.start()
        self.open: dict[str, Stream] = {}
        self.faults: deque[Response | None] = deque()
        self.calls: list[tuple[str, Any]] = []
        self.label = "default"
        self.headers: list[Mapping[str, str]] = []
        self.app = FastAPI()
        self.app.get("/health")(lambda: {})

        @self.app.middleware("http")
        async def look(request: Request, following: RequestResponseEndpoint) -> Response:
            if request.method == "POST":
                self.calls.append((request.url.path, await request.body()))
                self.headers.append(request.headers)
                fault = self.faults.popleft() if self.faults else None
                if fault is not None:
                    return fault
            return await following(request)

    def begin(self, name: str, ids: Sequence[int], params: SamplingParams, **given: Any) -> Stream:
        """Begins with a sequence; what the engine refuses is answered with 400."""
        try:
            (stream,) = self.engine.submit(ids, params, **given)
        except ConfigError as error:
            raise HTTPException(400, str(error)) from error
        self.open[name] = stream
        return stream

    def end(self, names: Sequence[str]) -> Response:
        """Ends sequences."""
        for name in names:
            if name in self.open:
                self.open[name].cancel()
        return Response()

    def load(self, folder: str) -> None:
        """Reads weights."""
        self.engine.update_weights(load_pretrained(folder).state_dict())


async def events(stream: Stream, part: Callable[[Sequence[Token], str | None], Json]) -> AsyncIterator[bytes]:
    """Yields server-sent events of a sequence, which ends with its reader.

    The last one has the last tokens, and there is none for a sequence that is aborted without new ones.
    """
    held: list[Token] = []
    try:
        async for delta in stream:
            if held and delta.tokens:
                yield written(part(held, None))
            held = delta.tokens or held
            if delta.finish_reason is not None and held:
                yield written(part(held, delta.finish_reason))
        yield b"data: [DONE]\n\n"
    finally:
        stream.cancel()


def written(event: Json) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


class FakeVllm(FakeServer):
    """Answers as vLLM 0.32 with ``--enable-scale-out`` and ``VLLM_SERVER_DEV_MODE=1``."""

    def __init__(self, model: CausalLM, eos: int | None = None) -> None:
        super().__init__(model, eos)
        app = self.app
        app.get("/v1/models")(lambda: {"object": "list", "data": [{"id": "fake"}]})
        app.get("/weight_info")(lambda: {"weight_version": self.label})
        app.post("/inference/v1/generate")(self.generate)
        app.post("/inference/v1/abort_requests")(self.abort_requests)
        app.get("/is_paused")(lambda: {"is_paused": self.engine.paused})
        app.get("/metrics")(self.metrics)
        app.post("/pause")(self.pause)
        app.post("/resume")(self.resume)
        app.post("/reset_prefix_cache")(lambda reset_running_requests=False: {"success": True})
        app.post("/collective_rpc")(self.collective_rpc)
        app.post("/update_weight_version")(self.name_version)

    def abort_requests(self, body: Json) -> Response:
        """``/inference/v1/abort_requests``."""
        return self.end(body["request_ids"])

    def pause(self, mode: str) -> Json:
        """``/pause``."""
        self.engine.pause(mode)
        return {"status": "paused"}

    def resume(self) -> Json:
        """``/resume``."""
        self.engine.resume()
        return {"status": "resumed"}

    def metrics(self) -> Response:
        """``/metrics``, for two engines of which one does nothing."""
        stats = self.engine.stats()
        figures = {
            "num_requests_running": stats.running, "num_requests_waiting": stats.waiting,
            "kv_cache_usage_perc": 1 - stats.free_pages / stats.pages,
            "prefix_cache_queries_total": stats.prompt_tokens, "prefix_cache_hits_total": stats.cached_tokens,
            "num_preemptions_total": stats.preemptions, "generation_tokens_total": stats.generated_tokens,
        }  # fmt: skip
        cache = f'block_size="{stats.page_size}",enable_prefix_caching="True",num_gpu_blocks="{stats.pages}"'
        lines = ["# TYPE vllm:cache_config_info gauge", f'vllm:cache_config_info{{{cache},engine="0"}} 1.0']
        for name, value in figures.items():
            lines += [f'vllm:{name}{{engine="0",model_name="m"}} {value}', f'vllm:{name}{{engine="1"}} 0.0']
        return Response("\n".join(lines))

    def generate(self, body: Json) -> Any:
        """``/inference/v1/generate``."""
        given = body["sampling_params"]
        stops = [*given["stop_token_ids"], *([] if given["ignore_eos"] or self.eos is None else [self.eos])]
        prompt_logprobs = given["prompt_logprobs"] is not None
        params = SamplingParams(
            given["max_tokens"], given["temperature"], given["top_p"], given["top_k"], given["min_p"], tuple(stops),
            given["seed"], presence_penalty=given["presence_penalty"], frequency_penalty=given["frequency_penalty"],
            repetition_penalty=given["repetition_penalty"],
            logit_bias={int(token): bias for token, bias in (given["logit_bias"] or {}).items()},
            top_logprobs=given["logprobs"], prompt_logprobs=prompt_logprobs, min_new_tokens=given["min_tokens"],
        )  # fmt: skip
        salt, priority = body.get("cache_salt", ""), -body.get("priority", 0)
        stream = self.begin(body["request_id"], body["token_ids"], params, salt=salt, priority=priority)
        if body.get("stream"):
            return StreamingResponse(events(stream, self.part), media_type="text/event-stream")
        output = stream.result()
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

    def part(self, tokens: Sequence[Token], reason: str | None) -> Json:
        """A chunk of a stream."""
        entries = [entry(token.id, token.logprob) for token in tokens]
        tops = [[entry(*pair) for pair in first(token.id, token.logprob, token.top)] for token in tokens]
        content = [{**each, "top_logprobs": top} for each, top in zip(entries, tops, strict=True)]
        choice = {"index": 0, "finish_reason": reason, "token_ids": [token.id for token in tokens]}
        return {"request_id": "", "choices": [{**choice, "logprobs": {"content": content}}]}

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
    """Answers as SGLang 0.5.23 with ``--enable-deterministic-inference``, SGLANG_RETURN_ORIGINAL_LOGPROB=1.

    Attributes:
        info: what ``/server_info`` says.
    """

    def __init__(self, model: CausalLM, eos: int | None = None) -> None:
        super().__init__(model, eos)
        self.info = {"enable_deterministic_inference": True, "incremental_streaming_output": False}
        app = self.app
        app.get("/model_info")(lambda: {"model_path": "fake", "weight_version": self.label})
        app.get("/server_info")(lambda: self.info)
        app.post("/generate")(self.generate)
        app.post("/abort_request")(self.abort_request)
        app.get("/v1/loads")(self.loads)
        app.post("/pause_generation")(self.pause)
        app.post("/continue_generation")(self.resume)
        app.post("/flush_cache")(self.flush)
        app.post("/update_weights_from_disk")(self.update)

    def abort_request(self, body: Json) -> Response:
        """``/abort_request``."""
        return self.end([body["rid"]])

    def pause(self, body: Json) -> Json:
        """``/pause_generation``."""
        self.engine.pause({"in_place": "keep", "retract": "keep", "abort": "abort"}[body["mode"]])
        return {"status": "ok"}

    def resume(self) -> Json:
        """``/continue_generation``."""
        self.engine.resume()
        return {"status": "ok"}

    def flush(self) -> Response:
        """``/flush_cache``."""
        self.engine.flush()
        return Response("Cache flushed.")

    def loads(self) -> Json:
        """``/v1/loads``."""
        stats = self.engine.stats()
        tokens = {"max_total_num_tokens": stats.pages * stats.page_size, "num_used_tokens": 0}
        return {"loads": [{"num_running_reqs": stats.running, "num_waiting_reqs": stats.waiting, **tokens}]}

    def generate(self, body: Json) -> Any:
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
            min_new_tokens=given["min_new_tokens"],
        )  # fmt: skip
        salt, priority = body.get("extra_key", ""), body.get("priority", 0)
        stream = self.begin(body["rid"], body["input_ids"], params, salt=salt, priority=priority)
        if body.get("stream"):
            seen: list[Token] = []

            def part(tokens: Sequence[Token], reason: str | None) -> Json:
                seen[:] = [*([] if self.info["incremental_streaming_output"] else seen), *tokens]
                meta: Json = {"id": body["rid"], "weight_version": self.label, "cached_tokens": 0}
                meta["finish_reason"] = None if reason is None else {"type": reason}
                meta["output_token_logprobs"] = [[token.logprob, token.id, None] for token in seen]
                meta["output_top_logprobs"] = [triples(*zip(*token.top, strict=True)) for token in seen if token.top]
                return {"text": "", "meta_info": meta}

            return StreamingResponse(events(stream, part), media_type="text/event-stream")
        output = stream.result()
        stopped = output.finish_reason == "stop"
        ended = {"type": output.finish_reason}
        reason = {"type": "stop", "matched": output.token_ids[-1]} if stopped else ended
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
            server.engine.abort()
            running.should_exit = True
            thread.join()
            server.engine.close()

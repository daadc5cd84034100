"""Where a chat's reply has token ids: vLLM's places, SGLang's, or both.

``return_token_ids`` puts the ids of what was generated into each choice. The prompt's stand in the reply itself (vLLM)
or in each choice (SGLang); the request's ``token_id_style`` chooses, else the server's option. SGLang's other two
fields say themselves what they want.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_serving.server.reply import Json
from arcforge_serving.server.state import ServerState

if TYPE_CHECKING:
    from arcforge_serving.server.chat import ChatRequest


def prompt_places(body: ChatRequest, server: ServerState) -> tuple[bool, bool]:
    """Returns whether the prompt's ids stand in the reply, and whether in its choices."""
    sglang = (body.token_id_style or server.token_id_style) == "sglang"
    return body.return_token_ids and not sglang, body.return_prompt_token_ids or (body.return_token_ids and sglang)


def meta_info(body: ChatRequest, prompt_tokens: int, output: GenerationOutput, stop: str | None) -> Json:
    """Returns SGLang's ``meta_info`` of a choice.

    Args:
        body: the request.
        prompt_tokens: of its prompt.
        output: of the choice.
        stop: the stop string that ended it.
    """
    reason: Json = {"type": output.finish_reason}
    if output.finish_reason == "stop":
        reason["matched"] = output.token_ids[-1] if stop is None else stop
    elif output.finish_reason == "length":
        reason["length"] = len(output.token_ids)
    found: Json = {
        "finish_reason": reason,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(output.token_ids),
        "cached_tokens": output.cached_tokens,
        "weight_version": str(output.weight_version),
    }
    if body.logprobs:
        pairs = zip(output.logprobs, output.token_ids, strict=True)
        found["output_token_logprobs"] = [[logprob, id_, None] for logprob, id_ in pairs]
    return found

"""Token ids in chats, as vLLM and as SGLang name and place them.

======================  ==========================================  =========================================
                        vLLM                                        SGLang
======================  ==========================================  =========================================
prompt as ids           ``prompt_token_ids``                        ``input_ids``
``return_token_ids``    prompt's in the reply, others in choices    both in each choice
further fields                                                      ``return_prompt_token_ids``,
                                                                    ``return_meta_info``
======================  ==========================================  =========================================

``token_id_style`` of the request, else of the server, selects the column of ``return_token_ids``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_core.errors import ConfigError
from arcforge_serving.server.shared.body import Body, TokenId
from arcforge_serving.server.shared.usage import Json


class TokenIdFields(Body):
    """The fields of a chat request about token ids."""

    prompt_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = Field(
        default=None, description="the rendered prompt, instead of messages"
    )
    input_ids: Annotated[list[TokenId], Field(min_length=1)] | None = Field(
        default=None, description="SGLang's name of prompt_token_ids; messages may accompany it and are not rendered"
    )
    return_prompt_token_ids: bool = Field(default=False, description="as SGLang: prompt_token_ids in each choice")
    return_meta_info: bool = Field(
        default=False, description="as SGLang: meta_info in each choice, with output_token_logprobs if requested"
    )
    token_id_style: Literal["vllm", "sglang"] | None = Field(
        default=None, description="where return_token_ids places the prompt's; default: the server's option"
    )

    def given_prompt(self, has_messages: bool) -> tuple[str, list[int]] | None:
        """Returns the field that has the prompt's token ids, and them; None if there is none.

        Raises:
            ConfigError: the prompt is given twice.
        """
        if self.prompt_token_ids is None:
            return None if self.input_ids is None else ("input_ids", self.input_ids)
        if self.input_ids is not None:
            raise ConfigError("input_ids", "given", "prompt_token_ids is given too; they are the same")
        if has_messages:
            raise ConfigError("prompt_token_ids", "given", "takes the place of messages; give one of them")
        return "prompt_token_ids", self.prompt_token_ids


class TokenIdWriter:
    """Writes the fields of a reply's choices that hold token ids.

    Args:
        body: the request.
        prompt: its token ids.
        returns_ids: ``return_token_ids``.
        logprobs: whether ``meta_info`` has log-probs.
        style: of the server.

    Attributes:
        returns_ids: the argument; parts of a choice have ``token_ids`` then.
        reply: fields of the reply itself.
        choice: fields of each choice that are known from the start.
    """

    def __init__(
        self, body: TokenIdFields, prompt: Sequence[int], *, returns_ids: bool, logprobs: bool, style: str
    ) -> None:
        self.returns_ids, self._returns_meta, self._logprobs = returns_ids, body.return_meta_info, logprobs
        self._prompt_tokens = len(prompt)
        in_choices = (body.token_id_style or style) == "sglang"
        ids: Json = {"prompt_token_ids": list(prompt)}
        self.reply = ids if returns_ids and not in_choices else {}
        self.choice = ids if body.return_prompt_token_ids or (returns_ids and in_choices) else {}

    def end(self, output: GenerationOutput, stop: str | None) -> Json:
        """Returns the fields of a choice's last part; `stop` is the stop string that ended it."""
        found: Json = {"weight_versions": output.weight_versions} if self.returns_ids else {}
        if self._returns_meta:
            found["meta_info"] = self._meta_info(output, stop)
        return found

    def whole(self, parts: Sequence[Json]) -> Json:
        """Returns the fields of a choice that consists of these parts."""
        found: Json = {}
        if self.returns_ids:
            found["token_ids"] = [id_ for part in parts for id_ in part.get("token_ids", ())]
            found["weight_versions"] = parts[-1]["weight_versions"]
        found |= self.choice
        if self._returns_meta:
            found["meta_info"] = parts[-1]["meta_info"]
        return found

    def _meta_info(self, output: GenerationOutput, stop: str | None) -> Json:
        reason: Json = {"type": output.finish_reason}
        if output.finish_reason == "stop":
            reason["matched"] = output.token_ids[-1] if stop is None else stop
        elif output.finish_reason == "length":
            reason["length"] = len(output.token_ids)
        found: Json = {
            "finish_reason": reason,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": len(output.token_ids),
            "cached_tokens": output.cached_tokens,
            "weight_version": str(output.weight_version),
        }
        if self._logprobs:
            pairs = zip(output.logprobs, output.token_ids, strict=True)
            found["output_token_logprobs"] = [[logprob, id_, None] for logprob, id_ in pairs]
        return found

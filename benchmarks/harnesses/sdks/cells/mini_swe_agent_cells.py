"""mini-swe-agent: a command in its first turn, and a second turn with what LiteLLM makes of the first."""

import os

os.environ.update(
    OPENAI_API_KEY="none",
    MSWEA_COST_TRACKING="ignore_errors",
    MSWEA_SILENT_STARTUP="1",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
)

from _common import ASK, main
from minisweagent.models.litellm_model import LitellmModel


def tools(url):
    model = LitellmModel(
        model_name="openai/small", model_kwargs={"api_base": f"{url}/v1"}, cost_tracking="ignore_errors"
    )
    history = [{"role": "user", "content": ASK}]
    first = model.query(history)
    assert first["extra"]["actions"], first
    output = {"output": "sunny", "returncode": 0, "exception_info": ""}
    results = model.format_observation_messages(first, [output] * len(first["extra"]["actions"]))
    second = model.query([*history, first, *results])
    assert second["role"] == "assistant"


main({"tools": tools})

"""An agent on the package openai-agents: the responses API, a tool, and an answer on standard output."""

import sys
from pathlib import Path

from agents import Agent, Runner, function_tool, set_tracing_disabled


@function_tool
def write(path: str, text: str) -> str:
    """Writes a file."""
    return f"{Path(path).write_text(text)} characters are written"


set_tracing_disabled(True)
model, prompt_file = sys.argv[1:]
agent = Agent(name="writer", instructions="Use the tool, then answer.", model=model, tools=[write])
print(Runner.run_sync(agent, Path(prompt_file).read_text(), max_turns=5).final_output)

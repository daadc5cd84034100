"""An agent on the package anthropic: streamed messages, a tool, and an answer on standard output."""

import sys
from pathlib import Path

import anthropic

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
TOOLS = [{"name": "write", "description": "Writes a file.", "input_schema": SCHEMA}]

model, prompt_file = sys.argv[1:]
client = anthropic.Anthropic()  # URL and key from the environment
messages = [{"role": "user", "content": Path(prompt_file).read_text()}]
while True:
    with client.messages.stream(model=model, max_tokens=100, tools=TOOLS, messages=messages) as stream:
        reply = stream.get_final_message()
    messages.append({"role": "assistant", "content": reply.content})
    calls = [block for block in reply.content if block.type == "tool_use"]
    if not calls:
        break
    results = []
    for call in calls:
        count = Path(call.input["path"]).write_text(call.input["text"])
        result = {"type": "tool_result", "tool_use_id": call.id, "content": f"{count} characters are written"}
        results.append(result)
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in reply.content if block.type == "text"))

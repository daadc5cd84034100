"""A stand-in for an agent that others wrote: OpenAI's own client, two turns, the second about its own first.

Modes: ``plain``; ``crash``: dies after a turn; ``hang``: prints, then waits for ever.
"""

import os
import sys
import time

import openai


def main(mode: str, model: str, prompt_file: str) -> None:
    assert "ARCFORGE_ENGINE_KEY" not in os.environ
    with open(prompt_file, encoding="utf-8") as file:
        messages = [{"role": "user", "content": file.read()}]
    client = openai.OpenAI(max_retries=0)  # URL and key from the environment
    for turn in range(2):
        reply = client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=4,
            extra_body={"chat_template_kwargs": {"enable_thinking": False, "clear_thinking": False}},
        )
        answer = reply.choices[0].message.content or ""
        if mode == "crash":
            sys.exit("the program is broken")
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"turn {turn}"}]
    with open("notes.txt", "w", encoding="utf-8") as file:
        file.write("noted")
    print(answer, flush=True)
    if mode == "hang":
        time.sleep(600)


main(*sys.argv[1:])

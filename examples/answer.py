"""Asks the packed model a question: its chat template renders the prompt, the engine answers, the parser reads it.

python examples/answer.py ["What is (35+11)*18?"]
"""

from __future__ import annotations

import sys

from arcforge_core.chat.load import build_chat_template
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.contracts.chat import ChatOptions, Message
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving import Engine, SamplingParams


def main(question: str = "What is (35+11)*18?") -> str:
    """Prints the reasoning and the answer, and returns the answer."""
    folder = find_checkpoint("demo")  # or a run's folder, or a directory of transformers
    template = build_chat_template(Tokenizer.load(folder))
    prompt = template.render([Message("user", question)], options=ChatOptions(), generation_prompt=True)
    params = SamplingParams(max_new_tokens=100, temperature=0.0, stop_token_ids=template.stop_ids)
    [output] = Engine(folder).generate([list(prompt.ids)], params)
    message = template.parse(output.token_ids, prompt.ids).message
    print(message.reasoning)
    print("answer:", message.content)
    return message.content


if __name__ == "__main__":
    main(*sys.argv[1:])

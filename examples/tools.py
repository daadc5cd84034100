"""An agent's loop: the model calls a calculator until it answers; earlier turns are continued token by token.

python examples/tools.py ["Please work out 8809*4275 with the calculator."]
"""

from __future__ import annotations

import ast
import operator
import sys

from arcforge_core.chat.load import build_chat_template
from arcforge_core.checkpoint.pretrained import find_checkpoint
from arcforge_core.contracts.chat import ChatOptions, Fork, Message, Tool
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving import Engine, SamplingParams

CALCULATOR = Tool({
    "name": "calculator",
    "description": "Computes an expression of numbers.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
})  # fmt: skip
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def compute(node: ast.AST) -> int:
    """Evaluates sums, differences and products of whole numbers."""
    match node:
        case ast.Expression(body):
            return compute(body)
        case ast.Constant(int(value)):
            return value
        case ast.BinOp(left, operation, right) if type(operation) in OPERATIONS:
            return OPERATIONS[type(operation)](compute(left), compute(right))
    raise ValueError(f"cannot compute {ast.unparse(node)}")


def calculator(expression: str) -> str:
    """Returns the result, or the error as the model gets to see it."""
    try:
        return str(compute(ast.parse(expression, mode="eval")))
    except (SyntaxError, ValueError) as error:
        return f"Error: {error}"


def main(question: str = "Please work out 8809*4275 with the calculator.", turns: int = 4) -> str:
    """Prints each call with its result, and returns the answer."""
    folder, options = find_checkpoint("demo"), ChatOptions()
    template, engine = build_chat_template(Tokenizer.load(folder)), Engine(folder)
    params = SamplingParams(max_new_tokens=100, temperature=0.0, stop_token_ids=template.stop_ids)
    prompt = template.render([Message("user", question)], [CALCULATOR], options, generation_prompt=True).ids
    for _ in range(turns):
        [output] = engine.generate([list(prompt)], params)
        message = template.parse(output.token_ids, prompt, [CALCULATOR]).message
        if not message.tool_calls:
            print("answer:", message.content)
            return message.content
        results = [Message("tool", calculator(str(call.arguments.get("expression")))) for call in message.tool_calls]
        for call, result in zip(message.tool_calls, results, strict=True):
            print(f"{call.name}({call.arguments}) = {result.content}")
        following = template.bridge_to_next_turn(prompt, output.token_ids, results, [CALCULATOR], options)
        assert not isinstance(following, Fork)  # a reply that was cut off cannot be continued
        prompt = following.ids
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])

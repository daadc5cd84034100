"""Functions of the standard library, to rewrite from their signature and docstring."""

from __future__ import annotations

import random
from typing import Any

from arcforge_rl.problems.library import functions_with_doctests
from arcforge_rl.problems.problem import Checked, Messages, Problem, said
from arcforge_rl.problems.python_checker import keeps_doctests
from arcforge_rl.sandbox.sync import Bench

QUESTION = """\
Write this function of the module {module}. It must pass the examples in its docstring.
```python
{head}
    ...
```"""


class Functions:
    """The answer is the library's own function; only functions whose doctests pass in the sandbox are kept."""

    corpus, modes, most = "agent", ("off",), 1
    tools: tuple[dict[str, Any], ...] = ()

    def draw(self, draw: random.Random) -> Problem:
        """Returns one of the library's functions; its name is the operand, so all its variants are on the same side."""
        function = draw.choice(functions_with_doctests())
        module = function.module.removesuffix(".py").replace("/", ".")
        question = QUESTION.format(module=module, head=function.head.rstrip())

        def solve(desk: Bench) -> Messages | None:
            if not keeps_doctests(function, function.text, desk):
                return None
            answer = f"```python\n{function.text.rstrip()}\n```"
            return [{"role": "user", "content": question}, said(answer)]

        arguments = {"module": function.module, "function": function.name}
        return Problem(function.name, solve, Checked("python_doctest", arguments))

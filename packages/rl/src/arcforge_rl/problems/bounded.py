"""Which texts a scorer may evaluate as Python: literals, and arithmetic without large powers."""

from __future__ import annotations

import ast
import math

LARGEST_EXPONENT = 1000
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)


def is_bounded(text: str) -> bool:
    """Returns whether a text is a literal, or arithmetic whose powers have exponents up to `LARGEST_EXPONENT`.

    So ``[0] * 10**9`` is not, which fills the memory, nor ``9**(9*9*9*9*9*9*9)``, which does not end.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if _is_arithmetic(tree):
            return True
        ast.literal_eval(tree)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_arithmetic(node: ast.expr) -> bool:
    """Returns whether an expression has numbers, names, functions and the operators above only, with small powers."""
    if isinstance(node, ast.BinOp):
        small = not isinstance(node.op, ast.Pow) or _largest(node.right) <= LARGEST_EXPONENT
        return small and isinstance(node.op, OPERATORS) and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.UAdd | ast.USub) and _is_arithmetic(node.operand)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and not node.keywords and all(map(_is_arithmetic, node.args))
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) in (int, float))


def _largest(node: ast.expr) -> float:
    """Returns an upper bound of the absolute value of an exponent, in which names count 1."""
    if isinstance(node, ast.Constant):
        return min(abs(node.value), 1e9) if isinstance(node.value, int | float) else math.inf
    if isinstance(node, ast.UnaryOp):
        return _largest(node.operand)
    if isinstance(node, ast.Call):
        return max(map(_largest, node.args), default=math.inf)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _largest(node.left) + _largest(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _largest(node.left) * _largest(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
        return _largest(node.left) if _largest(node.right) >= 1 else math.inf
    return 1.0 if isinstance(node, ast.Name) else math.inf

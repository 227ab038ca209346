"""Which answers a verifier may see.

Some of reasoning-gym's verifiers hand the answer to Python's `eval` or to sympy's parser, which is
`eval` behind a tokenizer, in the process that trains. An answer is text that a model wrote: what is
more than a literal or a formula of bounded size is not evaluated, and scores nothing. Three more
answers would be paid for without being right, or stop the process: NaN (equal to everything where a
verifier asks only whether the difference is large), numbers of absurd size, and endless text.
"""

import ast
import re

MAX_ANSWER_CHARS = 20_000
MAX_FORMULA_CHARS = 1_000
MAX_POWER = 32
"""Of a formula: nested exponents multiply."""

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Families whose verifier calls `eval` on the answer."""
SYMBOLIC = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Families whose verifier calls sympy's `parse_expr` on the answer."""

_NOT_A_NUMBER = re.compile(r"(?<![a-z])(nan|inf|infinity)j?(?![a-z])", re.IGNORECASE)
_ABSURD_NUMBER = re.compile(r"\d\.?e[+-]?\d{4}", re.IGNORECASE)
_FORMULA = re.compile(r"(?:\s|[-+*/^(),]|\d+(?:\.\d*)?|\.\d+|[A-Za-z]+)*")
_WORD = re.compile(r"[A-Za-z]+")
_FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
    | {"exp", "log", "ln", "sqrt", "Abs", "pi"}
)
_LITERALS = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load)
_SIGNS = (ast.UnaryOp, ast.UAdd, ast.USub)


def admissible(family: str, answer: str) -> bool:
    """Return whether reasoning-gym's verifier of `family` may judge this answer."""
    if len(answer) > MAX_ANSWER_CHARS:
        return False
    if _NOT_A_NUMBER.search(answer) or _ABSURD_NUMBER.search(answer):
        return False
    if family in EVALUATED:
        return _is_literal(answer)
    if family in SYMBOLIC:
        return _is_formula(answer)
    return True


def _parsed(text: str) -> ast.Expression | None:
    """Return the tree of an expression, or None where Python finds none."""
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _is_literal(text: str) -> bool:
    """Return whether `eval` would run nothing: a literal, or no Python at all."""
    tree = _parsed(text)
    return tree is None or all(isinstance(node, _LITERALS + _SIGNS) for node in ast.walk(tree))


def _is_formula(text: str) -> bool:
    """Return whether this is arithmetic over numbers, one-letter names and known functions."""
    if len(text) > MAX_FORMULA_CHARS or not _FORMULA.fullmatch(text):
        return False
    if any(len(word) > 1 and word not in _FUNCTIONS for word in _WORD.findall(text)):
        return False
    tree = _parsed(text)
    return tree is not None and _calls_functions(tree) and _power(tree.body) <= MAX_POWER


def _calls_functions(tree: ast.Expression) -> bool:
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return all(isinstance(function, ast.Name) and function.id in _FUNCTIONS for function in called)


def _power(node: ast.AST) -> float:
    """Return the largest product of exponents from here to a leaf; infinite where unclear."""
    below = max((_power(child) for child in ast.iter_child_nodes(node)), default=1.0)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)):
        return below
    parts = list(ast.walk(node.right))
    if any(isinstance(part, ast.Pow | ast.Call) for part in parts):
        return float("inf")
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    exponent = 1.0
    for number in numbers:
        exponent *= max(1.0, abs(number)) if isinstance(number, int | float) else float("inf")
    return _power(node.left) * exponent

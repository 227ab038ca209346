"""Limits of an answer, checked before a verifier that is not ours sees it.

Some of reasoning-gym's verifiers hand the answer to Python's `eval` or to sympy's parser, which is
`eval` behind a tokenizer. An answer is text that a model wrote: what is more than a literal or a
formula of bounded size is not evaluated, and scores as a wrong answer. So do NaN (equal to
everything where a verifier asks only whether the difference is large), numbers of absurd size, and
endless text. Every check takes time linear in the answer.
"""

import ast
import math
import re

MAX_ANSWER_CHARS = 20_000
MAX_DIGITS = 1_000
"""Of one number."""
MAX_FORMULA_CHARS = 1_000
MAX_FORMULA_PARTS = 300
"""Numbers, names and operators."""
MAX_POWER = 32
"""Of a formula: nested exponents multiply."""
MAX_CALL_DEPTH = 2
"""Functions of functions in a formula."""
MAX_MOVES_CHARS = 1_000
MAX_MOVE_DIGITS = 2
"""Of how far or how often one move goes."""

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Families whose verifier calls `eval` on the answer."""
ARITHMETIC = frozenset({"countdown", "puzzle24"})
"""Families whose verifier calls sympy's `parse_expr` on the answer, and that ask for numbers and
the four operators."""
SYMBOLIC = frozenset(
    {"intermediate_integration", "polynomial_multiplication", "simple_integration"}
)
"""Families whose verifier calls sympy's `parse_expr` on a formula with names and functions."""
MOVED = frozenset({"rubiks_cube", "rush_hour"})
"""Families whose verifier does each move as often as the answer says."""

_NOT_A_NUMBER = re.compile(r"(?<![a-z])(nan|inf|infinity)j?(?![a-z])", re.IGNORECASE)
_ABSURD_NUMBER = re.compile(rf"\d\.?e[+-]?\d{{4}}|(?<!\d)\d{{{MAX_DIGITS + 1}}}", re.IGNORECASE)
_LONG_MOVE = re.compile(rf"\d{{{MAX_MOVE_DIGITS + 1}}}")
_FORMULA = re.compile(r"(?:\s|[-+*/^(),]|\d++(?:\.\d*+)?+|\.\d++|[A-Za-z]++)*+", re.ASCII)
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
    if _NOT_A_NUMBER.search(answer) or _ABSURD_NUMBER.search(answer.replace("_", "")):
        return False
    if family in EVALUATED:
        return _is_literal(answer)
    if family in ARITHMETIC:
        return not _WORD.search(answer) and _is_formula(answer, most_power=1)
    if family in SYMBOLIC:
        return _is_formula(answer)
    if family in MOVED:
        return len(answer) <= MAX_MOVES_CHARS and not _LONG_MOVE.search(answer)
    return True


def _parse(text: str) -> ast.Expression | None:
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _is_literal(text: str) -> bool:
    """Return whether `eval` would run nothing: a literal, or no Python at all."""
    tree = _parse(text)
    return tree is None or all(isinstance(node, _LITERALS + _SIGNS) for node in ast.walk(tree))


def _is_formula(text: str, *, most_power: float = MAX_POWER) -> bool:
    """Return whether this is arithmetic over numbers, one-letter names and known functions."""
    if len(text) > MAX_FORMULA_CHARS or not _FORMULA.fullmatch(text):
        return False
    if any(len(word) > 1 and word not in _FUNCTIONS for word in _WORD.findall(text)):
        return False
    tree = _parse(text)
    return tree is not None and _is_bounded(tree.body, most_power)


def _is_bounded(formula: ast.expr, most_power: float) -> bool:
    parts = 0
    inside: list[tuple[ast.AST, float, int]] = [(formula, 1.0, 0)]
    while inside:
        node, power, depth = inside.pop()
        parts += isinstance(node, ast.expr)
        if parts > MAX_FORMULA_PARTS:
            return False
        if isinstance(node, ast.Call):
            depth += 1
            if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
                return False
            if depth > MAX_CALL_DEPTH or (depth > 1 and not _has_variable(node)):
                return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            power *= _bound_exponent(node.right)
            if power > most_power:
                return False
            inside.append((node.left, power, depth))
        else:
            inside.extend((child, power, depth) for child in ast.iter_child_nodes(node))
    return True


def _has_variable(node: ast.AST) -> bool:
    """Return whether a one-letter name is in there: of numbers alone, a function of a function may
    need more digits than there is memory for."""
    return any(isinstance(part, ast.Name) and len(part.id) == 1 for part in ast.walk(node))


def _bound_exponent(node: ast.expr) -> float:
    """Return a bound on an exponent: the product of its numbers, where a sum may exceed that of
    ones; infinite where unclear."""
    parts = list(ast.walk(node))
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    if any(isinstance(part, ast.Pow | ast.Call) for part in parts):
        return math.inf
    sizes = [abs(number) for number in numbers if isinstance(number, int | float)]
    least = 1.0 if len(sizes) < 2 else 2.0
    return math.prod((max(least, size) for size in sizes), start=1.0)

"""Every regular expression of the code base takes time linear in the text it is tried on.

The expressions are collected from the source, each with texts made from its own parts: what it
repeats, written many times, with an end that does not match. They are tried in a process that
dies at a limit of processor time, because an expression that backtracks cannot be interrupted.

Mutants seen to fail here: a nested quantifier as in `(?:\\s|[A-Za-z]+)*` without its possessive
plus (guard), `<answer>(.*?)</answer>` with `findall` (rewards).
"""

import ast
import importlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"agentrl": "", "envs/agentrl_envs": "envs", "tools/agentrl_tools": "tools"} | {
    "sandbox/agentrl_sandbox": "sandbox"
}
"""Folders of source, and where each is imported from."""
FUNCTIONS = frozenset(
    {"compile", "match", "search", "sub", "subn", "fullmatch", "findall", "finditer", "split"}
)
MADE_LATER: Final = {
    "agentrl/chat/control_tokens.py": "control tokens, escaped, one beside the other",
    "agentrl/chat/format.py": "control tokens and a template's own turns, escaped",
    "agentrl/chat/renderer_template.py": "control tokens, escaped, one beside the other",
    "agentrl/chat/template.py": "the name of a variable, which is an identifier",
    "agentrl/chat/tokenizer.py": "control tokens, escaped, one beside the other",
    "agentrl/chat/thinking.py": "marks of thinking that a template opens, escaped",
    "agentrl/config/document.py": "the forms of YAML's scalars; they read the user's config",
    "agentrl/config/run.py": "the user's own expressions, to be hidden in the viewer",
    "agentrl/rewards.py": "one escaped answer",
    "agentrl/selfcheck/checks/memory.py": "a name of the kernel's",
    "agentrl/selfcheck/report.py": "names of the user and the host, escaped",
    "agentrl/view/redaction.py": "the user's own expressions beside those of its constants",
    "envs/agentrl_envs/code/recipes.py": "read a task's own question",
    "envs/agentrl_envs/gui/osworld/metrics.py": "an expression of the task's file",
    "envs/agentrl_envs/gui/osworld/rules.py": "an expression of the task's file",
    "envs/agentrl_envs/web/miniwob/players/scene.py": "gold players' own, on one line of a page",
}
"""Files with expressions that are no constants, and what those are made of."""
READ_FROM_THE_USER: Final = {
    "agentrl/config/document.py": "scalars of the user's config",
    "agentrl/export/choice.py": "a condition of the user's command line",
}
"""Files with expressions that no policy, page or program can write a text for."""
SHORT, LONG = 20_000, 80_000
"""Characters of a text, and of a longer one for what is not quick."""
QUICK_S = 0.03
MOST_RATIO = 10.0
"""Between the times of texts whose lengths are one to four: four if linear, sixteen if square."""
LIMIT_S = 1.0
"""Processor time for one text; a square of `LONG` takes more."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A regular expression and where it stands."""

    place: str
    pattern: str
    flags: int
    anchored: tuple[str, ...] = ()
    """`match` or `fullmatch` where it is never looked for further on in a text."""

    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self.flags)


def expressions() -> Iterator[Expression]:
    for folder, start in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/scaffold/" in name:
                continue
            module = ".".join(path.relative_to(ROOT / start).with_suffix("").parts)
            tree = ast.parse(path.read_text())
            for call in _calls(tree):
                found = _value(call.args[0], module), _flags(call, module)
                if found[0] is None or found[1] is None:
                    assert name in MADE_LATER, f"{name}:{call.lineno}: {ast.unparse(call)}"
                    continue
                pattern = found[0].decode("latin-1") if isinstance(found[0], bytes) else found[0]
                yield Expression(f"{name}:{call.lineno}", pattern, found[1], _anchored(call, tree))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if (
            isinstance(node, ast.Call)
            and isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "re"
            and function.attr in FUNCTIONS
        ):
            yield node


def _value(node: ast.expr, module: str) -> Any:
    """Return what an expression of Python is at the top of its module; None for a local one."""
    if isinstance(node, ast.Constant):
        return node.value
    try:
        code = compile(ast.Expression(node), module, "eval")
        return eval(code, vars(importlib.import_module(module)))
    except NameError:
        return None


def _anchored(call: ast.Call, tree: ast.AST) -> tuple[str, ...]:
    """Return which of `match` and `fullmatch` an expression is used with, if with nothing else."""
    methods = {call.func.attr} if isinstance(call.func, ast.Attribute) else set[str]()
    if methods == {"compile"}:
        names = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and node.value is call
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        methods = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in names
        }
    return tuple(sorted(methods)) if methods and methods <= {"match", "fullmatch"} else ()


def _flags(call: ast.Call, module: str) -> int | None:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    at = 1 if method == "compile" else 2
    nodes = [word.value for word in call.keywords if word.arg == "flags"]
    if not nodes and method not in ("sub", "subn", "split"):
        nodes = call.args[at : at + 1]
    flags = _value(nodes[0], module) if nodes else 0
    return None if flags is None else int(flags)


# -- texts ----------------------------------------------------------------------------------------

_parser: Any = importlib.import_module("re._parser")
CATEGORIES = {"DIGIT": "1", "SPACE": " ", "WORD": "a", "NOT_DIGIT": "a", "NOT_SPACE": "a"}


def _character(op: str, value: Any) -> str:
    match op:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return "a" if value != ord("a") else "b"
        case "IN":
            return _of_class(value)
        case _:
            return "a"


def _of_class(items: Sequence[tuple[Any, Any]]) -> str:
    if str(items[0][0]) == "NEGATE":
        expression = re.compile(f"[^{''.join(_written(item) for item in items[1:])}]")
        return next(c for c in 'a1 b,;"\n.(é' if expression.fullmatch(c))
    op, value = items[0]
    if str(op) == "RANGE":
        return chr(value[0])
    if str(op) == "CATEGORY":
        return CATEGORIES.get(str(value).removeprefix("CATEGORY_"), "-")
    return chr(value)


def _written(item: tuple[Any, Any]) -> str:
    op, value = item
    if str(op) == "RANGE":
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    if str(op) == "CATEGORY":
        name = str(value).removeprefix("CATEGORY_")
        return {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}.get(name, r"\W")
    return re.escape(chr(value))


def sample(tree: Any, units: list[tuple[str, str]], before: str = "") -> str:
    """Return a text that an expression matches, each repetition once; note in `units` each part
    that can be repeated, with what stands before it."""
    text = ""
    for op, value in tree:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            body = sample(value[2], units, before + text)
            units.append((before + text, body))
            text += body * max(1, value[0])
        elif name == "SUBPATTERN":
            text += sample(value[3], units, before + text)
        elif name == "ATOMIC_GROUP":
            text += sample(value, units, before + text)
        elif name == "BRANCH":
            texts = [sample(branch, units, before + text) for branch in value[1]]
            units.extend((before + text, one) for one in texts)
            text += next((one for one in texts if one), "")
        elif name in ("AT", "ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS"):
            continue
        else:
            text += _character(name, value)
    return text


def attacks(expression: Expression) -> list[tuple[str, str, str]]:
    """Return what comes before, what is repeated, and what comes after."""
    units: list[tuple[str, str]] = []
    whole = sample(_parser.parse(expression.pattern, expression.flags), units)
    units += [("", whole), *(("", whole[:end]) for end in range(1, min(len(whole), 12)))]
    parts = [unit for _, unit in units]
    units += [("", part) for part in parts]
    units += [("", first + second) for first in parts[:6] for second in parts[:6]]
    kinds = {(start, unit) for start, unit in units if unit}
    return [(start, unit, end) for start, unit in sorted(kinds) for end in ("", "\x00")]


# -- the process that may die ---------------------------------------------------------------------


def _seconds(expression: Expression, text: str) -> float:
    compiled = expression.compiled()
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    start = time.process_time()
    for method in expression.anchored or ("fullmatch", "findall"):
        getattr(compiled, method)(text)
    return time.process_time() - start


def _is_linear(expression: Expression, attack: tuple[str, str, str]) -> bool:
    start, unit, end = attack
    short, long = (start + unit * (size // len(unit)) + end for size in (SHORT, LONG))
    first = _seconds(expression, short)
    if first < QUICK_S:
        return True
    # The least of two: another process may take the cache away, and never gives time back.
    first = min(first, _seconds(expression, short))
    return min(_seconds(expression, long), _seconds(expression, long)) < MOST_RATIO * first


def _tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        place, pattern, flags, anchored = json.loads(line)
        expression = Expression(place, pattern, flags, tuple(anchored))
        _tell(begun=place)
        for attack in attacks(expression):
            if not _is_linear(expression, attack):
                _tell(slow=place, attack=attack)
                break
    signal.setitimer(signal.ITIMER_PROF, 0)


def slow(asked: Sequence[Expression]) -> list[str]:
    """Return the places of expressions that take more than linear time."""
    found: list[str] = []
    left = list(asked)
    while left:
        lines = "".join(json.dumps([e.place, e.pattern, e.flags, e.anchored]) + "\n" for e in left)
        done = subprocess.run(
            [sys.executable, __file__], input=lines, capture_output=True, text=True, timeout=250
        )
        told = [json.loads(line) for line in done.stdout.splitlines()]
        found += [f"{line['slow']} on {line['attack']}" for line in told if "slow" in line]
        begun = [line["begun"] for line in told if "begun" in line]
        if done.returncode == 0:
            return found
        assert done.returncode == -signal.SIGPROF, done.stderr
        found.append(f"{begun[-1]} takes more than {LIMIT_S:g} s")
        left = left[len(begun) :]
    return found


# -- tests ----------------------------------------------------------------------------------------


def test_every_expression_is_linear() -> None:
    collected = [
        expression
        for expression in expressions()
        if expression.place.partition(":")[0] not in READ_FROM_THE_USER
    ]
    assert len(collected) > 50
    assert slow(collected) == []


@pytest.mark.parametrize(
    "pattern",
    [r"(?:\s|[-+*/^(),]|\d+(?:\.\d*)?|\.\d+|[A-Za-z]+)*", r"<answer>(.*?)</answer>", r"\s*x\s*y"],
)
def test_the_attacks_find(pattern: str) -> None:
    assert slow([Expression("here", pattern, re.DOTALL)])


if __name__ == "__main__":
    main()

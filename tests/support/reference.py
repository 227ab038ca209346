"""docs/api.md as a reference: what it documents, what the code says of that, and what it shows."""

import ast
import builtins
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.pages import Block, find

PAGE = "docs/api.md"
Function = ast.FunctionDef | ast.AsyncFunctionDef

_HEADING = re.compile(r"^(#+) (.*)$")
_DIRECTIVE = re.compile(r"\.\. (?:auto)?(\w+):: (\S+)$")
_OPTION = re.compile(r"   :([a-z-]+):(.*)$")
_FENCE = re.compile(r"^```")
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$")
_ENTRY = re.compile(r"^    (\w+): \S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """One name that the page documents."""

    module: str
    """Module that the page lists it under."""
    name: str
    members: tuple[str, ...] | None
    """Members to show; None shows all public ones."""
    hidden: frozenset[str]
    """Members not to show."""

    @property
    def full(self) -> str:
        """Return the name with its module."""
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        """Return the object."""
        return getattr(import_module(self.module), self.name)

    @property
    def home(self) -> str:
        """Return the module that defines it."""
        made = inspect.isroutine(self.value) or inspect.isclass(self.value)
        return self.value.__module__ if made else self.module

    @property
    def node(self) -> ast.ClassDef | Function | None:
        """Return its definition; None for a name that is assigned."""
        for statement in syntax(self.home).body:
            if isinstance(statement, ast.ClassDef | Function) and statement.name == self.name:
                return statement
        return None

    @property
    def doc(self) -> str:
        """Return its docstring."""
        if self.node is not None:
            return ast.get_docstring(self.node) or ""
        kind = type(self.value)
        own = kind.__doc__ if kind.__module__.startswith("agentrl.") else None
        return assigned(syntax(self.home).body).get(self.name) or own or ""

    def shows(self, member: str) -> bool:
        """Return whether the page shows a member of the class."""
        if member.startswith("_") or member in self.hidden:
            return False
        return self.members is None or member in self.members

    @property
    def methods(self) -> dict[str, Function]:
        """Return the methods and properties that the page shows."""
        body = self.node.body if isinstance(self.node, ast.ClassDef) else []
        found = [part for part in body if isinstance(part, Function)]
        return {method.name: method for method in found if self.shows(method.name)}

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes that the page shows, with their docstrings."""
        if not isinstance(self.node, ast.ClassDef):
            return {}
        found = assigned(self.node.body)
        if (init := initialiser(self.node)) is not None:
            found |= assigned(init.body, of="self")
        return {name: doc for name, doc in found.items() if self.shows(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading of the page, with what is below it and above the next one."""

    heading: str
    level: int
    line: int
    names: tuple[Name, ...]
    modules: tuple[str, ...]
    """Modules that the section introduces: every public name of theirs is on the page."""
    examples: tuple[Block, ...]


def sections(root: Path) -> tuple[Section, ...]:
    """Return the sections of the page from top to bottom."""
    text = (root / PAGE).read_text(encoding="utf-8")
    starts = [*_headings(text)]
    blocks = [block for block in find(text, PAGE) if block.language == "python"]
    lines = text.splitlines()
    found: list[Section] = []
    current = ""
    for at, (line, level, heading) in enumerate(starts):
        end = starts[at + 1][0] if at + 1 < len(starts) else len(lines) + 1
        names, modules, current = _documented(lines[line : end - 1], current)
        found.append(
            Section(
                heading=heading,
                level=level,
                line=line,
                names=names,
                modules=modules,
                examples=tuple(block for block in blocks if line < block.line < end),
            )
        )
    return tuple(found)


def public(module: str) -> tuple[str, ...]:
    """Return the public names of a module: those it lists, or those it defines."""
    listed = getattr(import_module(module), "__all__", None)
    if listed is not None:
        return tuple(listed)
    body = syntax(module).body
    defined = [part.name for part in body if isinstance(part, ast.ClassDef | Function)]
    named = [name for name in assigned(body) if not name.startswith("_")]
    return tuple(name for name in (*defined, *named) if not name.startswith("_"))


@cache
def syntax(module: str) -> ast.Module:
    """Return the syntax of a module."""
    return ast.parse(Path(import_module(module).__file__ or "").read_text(encoding="utf-8"))


def assigned(body: Sequence[ast.stmt], *, of: str = "") -> dict[str, str]:
    """Return what is assigned, and the text that stands below it; empty where none does.

    With `of`, the attributes of that name instead.
    """
    found: dict[str, str] = {}
    for statement, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        text = below.value if isinstance(below, ast.Expr) else None
        doc = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
        for target in targets:
            if isinstance(target, ast.Name) and not of:
                found[target.id] = doc
            elif isinstance(target, ast.Attribute) and ast.unparse(target.value) == of:
                found[target.attr] = doc
    return found


def initialiser(node: ast.ClassDef) -> Function | None:
    """Return the `__init__` that a class writes out."""
    written = (part for part in node.body if isinstance(part, Function))
    return next((method for method in written if method.name == "__init__"), None)


def parameters(function: Function) -> tuple[str, ...]:
    """Return the names of a function's parameters, without `self`."""
    given = function.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    names = (one.arg for one in every if one is not None)
    return tuple(name for name in names if name not in ("self", "cls"))


def described(doc: str) -> dict[str, tuple[str, ...]]:
    """Return the sections of a docstring, with the names that each of them describes."""
    found: dict[str, tuple[str, ...]] = {}
    current = ""
    for line in doc.splitlines():
        if (section := _SECTION.match(line)) is not None:
            current = section[1]
            found[current] = ()
        elif line and not line.startswith(" "):
            current = ""
        elif current and (entry := _ENTRY.match(line)) is not None:
            found[current] = (*found[current], entry[1])
    return found


def raised(
    function: Function, *, beside: Sequence[ast.stmt], known: Mapping[str, Any]
) -> set[type[BaseException]]:
    """Return the errors that a function raises by name, itself or in private functions `beside` it.

    What is called where errors are caught is left out, and so is an error that is in a variable.
    `known` are the names of the module.
    """
    functions = [part for part in beside if isinstance(part, Function)]
    private = {part.name: part for part in functions if part.name.startswith("_")}
    found = set[type[BaseException]]()
    bodies, seen = [function.body], set[str]()
    while bodies:
        for part in _run(bodies.pop()):
            if isinstance(part, ast.Raise) and part.exc is not None:
                error = part.exc.func if isinstance(part.exc, ast.Call) else part.exc
                name = ast.unparse(error)
                kind = known.get(name, getattr(builtins, name, None))
                if inspect.isclass(kind) and issubclass(kind, BaseException):
                    found.add(kind)
            elif isinstance(part, ast.Call):
                name = ast.unparse(part.func).removeprefix("self.")
                if name in private and name not in seen:
                    seen.add(name)
                    bodies.append(private[name].body)
    return found


def _run(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield what runs when a body does: no functions defined in it, and nothing that is caught."""
    for part in body:
        if isinstance(part, Function | ast.ClassDef | ast.Lambda):
            continue
        yield part
        if isinstance(part, ast.Try) and part.handlers:
            yield from _run([*part.handlers, *part.orelse, *part.finalbody])
        else:
            yield from _run([*ast.iter_child_nodes(part)])


def _headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield line, level and words of every heading; a comment in a block of code is none."""
    in_block = False
    for number, line in enumerate(text.splitlines(), start=1):
        if _FENCE.match(line):
            in_block = not in_block
        elif not in_block and (heading := _HEADING.match(line)) is not None:
            yield number, len(heading[1]), heading[2]


def _documented(
    lines: Sequence[str], current: str
) -> tuple[tuple[Name, ...], tuple[str, ...], str]:
    """Return the names and modules that lines document, and the module they end in."""
    names: list[Name] = []
    modules: list[str] = []
    for at, line in enumerate(lines):
        if (directive := _DIRECTIVE.match(line)) is None:
            continue
        kind, name = directive.groups()
        options = dict(_options(lines[at + 1 :]))
        if kind == "currentmodule":
            current = name
        elif kind == "module":
            current = name
            modules.append(name)
            shown = public(name) if "members" in options else ()
            names += (
                Name(module=name, name=one, members=None, hidden=frozenset()) for one in shown
            )
        else:
            members = options.get("members")
            listed = tuple(part.strip() for part in members.split(",")) if members else None
            hidden = options.get("exclude-members", "").split(",")
            names.append(
                Name(
                    module=current,
                    name=name.partition("(")[0],
                    members=() if members is None else listed,
                    hidden=frozenset(part.strip() for part in hidden),
                )
            )
    return tuple(names), tuple(modules), current


def _options(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a directive, whose lines come first."""
    for line in lines:
        if (option := _OPTION.match(line)) is None:
            return
        yield option[1], option[2].strip()

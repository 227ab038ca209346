"""Our packages, as they lie in the repository."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOTS = {
    "agentrl": ".",
    "agentrl_envs": "envs",
    "agentrl_tools": "tools",
    "agentrl_sandbox": "sandbox",
}
"""Every package, and the import root it lies in."""


def files(root: Path, package: str) -> list[Path]:
    return sorted((root / ROOTS[package] / package).rglob("*.py"))


def module_name(root: Path, package: str, file: Path) -> str:
    parts = file.relative_to(root / ROOTS[package]).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def modules(root: Path) -> dict[str, Path]:
    return {module_name(root, package, f): f for package in ROOTS for f in files(root, package)}


def imports(file: Path) -> Iterator[str]:
    """Yield every module a file imports, wherever in it, and for type checkers only too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{file}: relative import of {node.module}; write it in full"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

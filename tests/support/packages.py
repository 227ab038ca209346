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


def loads(name: str, file: Path) -> Iterator[str]:
    """Yield every module that importing one begins, as imports at its top, with their packages.

    Importing `a.b.c` begins `a.b` first, and `a` before it, unless the importer lies in them.
    """
    for node in _run_at_import(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias}" for alias in names]
        for found in names:
            while found and not f"{name}.".startswith(f"{found}."):
                yield found
                found = found.rpartition(".")[0]


def _run_at_import(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _run_at_import(child)

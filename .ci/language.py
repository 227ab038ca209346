"""Count how a Python codebase speaks: class names, docstrings, locals, modules, import circles.

    python .ci/language.py PATH...          a checkout, or any package folders
    python .ci/language.py --list PATH...   and name what was counted
    python .ci/language.py --hold PATH...   and fail where a measure is above its limit

A PATH is searched for top-level packages (folders with `__init__.py` whose parent has none); where
it has none it counts as one. Tests, docs, benchmarks and examples are left out unless named.
Standard library only, Python 3.11 or newer.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


SKIPPED_FOLDERS = word_set(
    "benchmarks build dist docs examples node_modules runs site-packages tests __pycache__"
)
NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")
CLAUSE_DOCSTRING = re.compile(r"(What|How|Who|Where)\b|[Rr]eturns? (what|how|where)\b")
PARTICIPLES = word_set(
    "asked chosen done found given gone heard held kept known left made named own said seen "
    "shown taken told wanted"
)
WIDER_LIST = PARTICIPLES | word_set(
    "answered begun born brought called closed counted drawn dropped due each ended granted "
    "grown here lent looked lost meant measured met mine missing noted one ones opened other "
    "others owed paid put refused rest same sent spent started stood stopped theirs there "
    "waited waiting what where who whole whose why written"
)
PRIVATE_WORDS = word_set(
    "asked berth birth desk evidence eyes fence figures flight flying freight growth heard "
    "keeper keeping kept likeness said seat seated shelf sight stand standing stillborn story "
    "tally taught teller told"
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LIMITS = {
    "one-word public classes": 3.0,
    "class names defined more than once": 0.0,
    "clause docstrings (What/How/Who/Where)": 0.1,
    "clause notes below fields": 0.1,
    "participle and pronoun locals": 0.3,
    "import circles": 0.0,
}
"""Highest values that `--hold` lets pass: counts, or percent where a measure is a share."""


@dataclass(frozen=True, slots=True)
class Module:
    """One parsed source file."""

    name: str
    path: Path
    lines: int
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class Package:
    """One top-level package, or one folder of loose files."""

    name: str
    folder: Path
    modules: tuple[Module, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A count out of a total, with examples."""

    count: int
    total: int
    examples: tuple[str, ...] = ()

    def __str__(self) -> str:
        percent = 100 * self.count / self.total if self.total else 0.0
        return f"{percent:.1f} % ({self.count}/{self.total})"


def source_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, skipped and hidden folders left out."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in SKIPPED_FOLDERS and not path.name.startswith("."):
                yield from source_files(path)
        elif path.suffix == ".py":
            yield path


def top_packages(folder: Path) -> list[Path]:
    """Return the outermost folders with an `__init__.py` at or below a folder."""
    if (folder / "__init__.py").exists():
        return [folder]
    children = (path for path in sorted(folder.iterdir()) if path.is_dir())
    visible = (p for p in children if p.name not in SKIPPED_FOLDERS and p.name[0] != ".")
    return [package for child in visible for package in top_packages(child)]


def load_package(folder: Path) -> Package:
    """Parse every file of a package."""
    modules: list[Module] = []
    for path in source_files(folder):
        text = path.read_text(encoding="utf-8", errors="replace")
        parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        modules.append(Module(".".join(parts), path, len(text.splitlines()), tree))
    return Package(folder.name, folder, tuple(modules))


def public_classes(modules: Sequence[Module]) -> list[tuple[str, Module]]:
    """Return the public class names with the modules that define them."""
    return [
        (node.name, module)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def one_word_classes(modules: Sequence[Module]) -> Share:
    """Count public class names of a single word."""
    names = [name for name, _ in public_classes(modules)]
    single = [name for name in names if len(NAME_WORD.findall(name)) == 1]
    return Share(len(single), len(names), tuple(sorted({*single})))


def repeated_classes(modules: Sequence[Module]) -> Share:
    """Count public class names that are defined more than once."""
    counts = Counter(name for name, _ in public_classes(modules))
    repeated = [f"{name} x{n}" for name, n in counts.most_common() if n > 1]
    return Share(len(repeated), len(counts), tuple(repeated))


def clause_docstrings(modules: Sequence[Module]) -> Share:
    """Count docstrings that open with What, How, Who, Where or "Return what/how/where"."""
    kinds = (ast.Module, ast.ClassDef, *FUNCTIONS)
    total, examples = 0, list[str]()
    for module in modules:
        for node in ast.walk(module.tree):
            docstring = ast.get_docstring(node) if isinstance(node, kinds) else None
            if docstring is None:
                continue
            total += 1
            if CLAUSE_DOCSTRING.match(docstring):
                line = getattr(node, "lineno", 1)
                examples.append(f"{module.path}:{line}: {docstring.splitlines()[0]}")
    return Share(len(examples), total, tuple(examples))


def clause_field_notes(modules: Sequence[Module]) -> Share:
    """Count strings below a field or constant that open as a clause."""
    total, examples = 0, list[str]()
    for module in modules:
        for node in ast.walk(module.tree):
            body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
            for before, after in pairwise(body):
                is_field = isinstance(before, ast.Assign | ast.AnnAssign)
                text = after.value if isinstance(after, ast.Expr) else None
                if not (is_field and isinstance(text, ast.Constant) and type(text.value) is str):
                    continue
                total += 1
                if CLAUSE_DOCSTRING.match(text.value):
                    first = text.value.splitlines()[0]
                    examples.append(f"{module.path}:{after.lineno}: {first}")
    return Share(len(examples), total, tuple(examples))


def local_names(function: ast.AST) -> set[str]:
    """Return the names that a function binds itself, its parameters and inner functions apart."""
    names: set[str] = set()
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, FUNCTIONS):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return names


def listed_locals(modules: Sequence[Module], listed: frozenset[str]) -> Share:
    """Count the locals whose name is in a list; a name counts once per function."""
    total, counts = 0, Counter[str]()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS):
                names = local_names(node)
                total += len(names)
                counts.update(names & listed)
    examples = tuple(f"{name} {count}" for name, count in counts.most_common())
    return Share(counts.total(), total, examples)


def defined_names(module: Module) -> Iterator[str]:
    """Yield the names of a module, its classes, functions, parameters and annotated fields."""
    yield module.name.rpartition(".")[2]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def private_words(modules: Sequence[Module]) -> Share:
    """Count definitions with a word of the project's own dialect in their name."""
    total, counts = 0, Counter[str]()
    for module in modules:
        for name in defined_names(module):
            total += 1
            words = {word.lower() for word in NAME_WORD.findall(name)}
            counts.update(words & PRIVATE_WORDS)
    examples = tuple(f"{word} {count}" for word, count in counts.most_common())
    return Share(counts.total(), total, examples)


def loose_modules(package: Package) -> list[str]:
    """Return the files directly in a package that also has packages below it."""
    folders = [p for p in package.folder.iterdir() if (p / "__init__.py").exists()]
    return sorted(p.name for p in package.folder.glob("*.py")) if folders else []


def import_graph(modules: Sequence[Module], roots: frozenset[str]) -> dict[str, set[str]]:
    """Return who imports whom, wherever in the file; the `__init__` of `roots` are left out."""
    names = {module.name for module in modules} - roots
    graph: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        if module.name not in graph:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    is_package = module.path.name == "__init__.py"
                    above = module.name.split(".")
                    above = above[: len(above) - node.level + is_package]
                    base = ".".join([*above, *([node.module] if node.module else [])])
                full = [f"{base}.{alias.name}" for alias in node.names]
                imported = [name if name in names else base for name in full]
            else:
                continue
            for name in imported:
                while name and name not in names:
                    name = name.rpartition(".")[0]
                if name and name != module.name:
                    graph[module.name].add(name)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, largest first."""
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(graph):
        stack = [(start, iter(sorted(graph[start])))]
        if start in seen:
            continue
        seen.add(start)
        while stack:
            name, children = stack[-1]
            child = next((c for c in children if c not in seen), None)
            if child is None:
                order.append(name)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, iter(sorted(graph[child]))))
    importers: dict[str, set[str]] = defaultdict(set)
    for name, imported in graph.items():
        for other in imported:
            importers[other].add(name)
    assigned: set[str] = set()
    components: list[list[str]] = []
    for start in reversed(order):
        component, pending = list[str](), [start]
        while pending:
            name = pending.pop()
            if name not in assigned:
                assigned.add(name)
                component.append(name)
                pending.extend(importers[name] - assigned)
        if len(component) > 1:
            components.append(sorted(component))
    return sorted(components, key=len, reverse=True)


def measures(packages: Sequence[Package]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return each measure of some packages as text, with its examples."""
    modules = [module for package in packages for module in package.modules]
    shares = {
        "one-word public classes": one_word_classes(modules),
        "class names defined more than once": repeated_classes(modules),
        "clause docstrings (What/How/Who/Where)": clause_docstrings(modules),
        "clause notes below fields": clause_field_notes(modules),
        "participle and pronoun locals": listed_locals(modules, PARTICIPLES),
        "  the same, wider list": listed_locals(modules, WIDER_LIST),
        "private words in definitions": private_words(modules),
    }
    rows = {title: (str(share), share.examples) for title, share in shares.items()}
    repeated = shares["class names defined more than once"]
    rows["class names defined more than once"] = (str(repeated.count), repeated.examples)
    loose = [f"{p.name}/{name}" for p in packages for name in loose_modules(p)]
    rows["loose modules beside packages"] = (str(len(loose)), tuple(loose))
    roots = frozenset(package.name for package in packages)
    rings = circles(import_graph(modules, roots))
    sizes = f"{len(rings)}, largest {len(rings[0])} files" if rings else "0"
    rows["import circles"] = (sizes, tuple(", ".join(ring) for ring in rings))
    rows["files"] = (str(len(modules)), ())
    rows["lines"] = (f"{sum(module.lines for module in modules):,}", ())
    return rows


def main() -> None:
    """Print a table with a column per package and one for all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--list", action="store_true", help="name what was counted")
    parser.add_argument("--hold", action="store_true", help="fail above the limits")
    arguments = parser.parse_args()
    folders = [f for path in arguments.paths for f in top_packages(path) or [path]]
    packages = [load_package(folder.resolve()) for folder in folders]
    columns = {package.name: measures([package]) for package in packages}
    if len(packages) > 1:
        columns["all"] = measures(packages)
    widths = {name: max(len(name), *(len(v[0]) for v in c.values())) for name, c in columns.items()}
    lines = [f"{'':40}" + "".join(f"  {name:>{widths[name]}}" for name in columns)]
    for title in next(iter(columns.values())):
        cells = (f"  {columns[name][title][0]:>{widths[name]}}" for name in columns)
        lines.append(f"{title:40}" + "".join(cells))
    if arguments.list:
        for title, (_, examples) in [*columns.values()][-1].items():
            if examples:
                lines += ["", title, *(f"  {example}" for example in examples)]
    sys.stdout.write("\n".join(lines) + "\n")
    if arguments.hold:
        values = {title: cell for title, (cell, _) in [*columns.values()][-1].items()}
        above = [
            f"{title} is {values[title]}, and the limit is {limit:g}"
            for title, limit in LIMITS.items()
            if float(re.match(r"[\d.]+", values[title].replace(",", ""))[0]) > limit
        ]
        if above:
            sys.exit("; ".join(above) + " (--list names what was counted)")


if __name__ == "__main__":
    main()

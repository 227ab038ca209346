"""A YAML file as plain values, with the line each key came from."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import ConfigError

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong with a config."""

    origin: str
    """Place of the problem: `file:line`, or the override."""
    text: str


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """Content of a config file. Problems are collected, so that all are reported at once."""

    values: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    problems: tuple[ConfigProblem, ...] = ()

    def origin(self, path: KeyPath) -> str:
        """Return the origin of a key, else of one inside it, else of the section around it."""
        while path:
            if path in self.origins:
                return self.origins[path]
            for key_path, origin in self.origins.items():
                if key_path[: len(path)] == path:
                    return origin
            path = path[:-1]
        return ""


MOST_CHARACTERS = 4 * 2**20
"""Characters of a config file."""
MOST_LEVELS = 100
"""Mappings and lists of a config within one another."""
MOST_DIGITS = 1000
MOST_NODES = 100_000
"""Keys and values of a config, with every anchor written out."""
NODE_CHARACTERS = 1000
KINDS: Mapping[str, str] = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "seq": "a list",
    "map": "a mapping",
}


def _reject(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """YAML with the plain values of YAML 1.2: `1e-3` is a number, `no` and `12:30` are text."""

    _levels = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node and all below it; refuses what Python could not go down to."""
        if self._levels > MOST_LEVELS:
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(
                None, None, f"more than {MOST_LEVELS} levels of nesting", mark
            )
        self._levels += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._levels -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct the value of a node; refuses kinds of values that only YAML has."""
        if node.tag not in TAGS:
            raise _reject(
                f"{_kind(node)}, but a config holds only text, numbers, true, false, null, lists, "
                "and mappings",
                node,
            )
        try:
            return super().construct_object(node, deep=deep)
        except (KeyError, ValueError) as error:
            raise _reject(f"{node.value!r:.40}, expected {_kind(node)}", node) from error

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either YAML 1.1 or `_Loader` would take for something else than text."""


INT = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)|0x[0-9a-fA-F]+|0o[0-7]+")
FLOAT = re.compile(
    r"[-+]?([0-9]+\.[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_RULES = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", INT.pattern, "-+0123456789"),
    ("tag:yaml.org,2002:float", FLOAT.pattern, "-+.0123456789"),
    ("tag:yaml.org,2002:merge", "<<", "<"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
)
for _tag, _pattern, _first in _RULES:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


TAGS = frozenset({*(tag for tag, _, _ in _RULES), *(f"tag:yaml.org,2002:{t}" for t in KINDS)})


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    if len(text) > MOST_DIGITS:
        raise _reject(
            f"a number of {len(text)} digits, and at most {MOST_DIGITS} are allowed", node
        )
    return int(text, 0)


def _construct_str(loader: _Loader, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _reject("a text with a lone surrogate", node)
    return text


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(re.sub(r"^([-+]?)\.(?=[inIN])", r"\1", str(loader.construct_scalar(node))))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:str", _construct_str)


def parse_value(text: str) -> Any:
    """Return one YAML value; raises `ConfigError` for text that is none, or that no config file may
    hold."""
    loader: _Loader | None = None
    walk = _Walk("line")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        walk.record(node)
        value = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{text!r} is not a YAML value: {_reason(error)}; put it in quotes if it is text"
        ) from error
    finally:
        if loader is not None:
            loader.dispose()
    if walk.problems:
        raise ConfigError("; ".join(problem.text for problem in walk.problems))
    return value


def dump(values: Mapping[str, Any]) -> str:
    """Return YAML that `read` gives back as the same values."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read(path: Path) -> ConfigDocument:
    """Read a config file; raise `ConfigError` for a missing file and for broken YAML."""
    text = _read_text(path)
    loader: _Loader | None = None
    node: yaml.Node | None = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return ConfigDocument({})
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{path}: expected a mapping of keys at the top level, got {_kind(node)}"
            )
        walk = _Walk(path)
        walk.record(node)
        values: dict[str, Any] = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = path if mark is None else f"{path}:{mark.line + 1}"
        key = "" if node is None or mark is None else ".".join(_key_at(node, mark.index))
        what = f"{key} is {_reason(error)}" if key else f"not valid YAML: {_reason(error)}"
        raise ConfigError(f"{where}: {what}; fix this line") from error
    finally:
        if loader is not None:
            loader.dispose()
    return ConfigDocument(values, walk.origins, tuple(walk.problems))


class _Walk:
    """Goes through the nodes of one file, or one value: where each key stands, and what YAML lets
    pass."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.origins: dict[KeyPath, str] = {}
        self.problems: list[ConfigProblem] = []
        self._sizes: dict[int, tuple[int, int]] = {}

    def record(self, node: yaml.Node) -> None:
        """Record the keys of a node; `ConfigError` for one too large, or that refers to itself."""
        count, levels = self.measure_node(node, ())
        if count > MOST_NODES:
            raise ConfigError(
                f"{self.path}: with anchors expanded it has {count} keys and values, and a config "
                f"may have at most {MOST_NODES}; remove some, or remove repeated anchors"
            )
        if levels > MOST_LEVELS + 1:
            raise ConfigError(
                f"{self.path}: with anchors expanded it has {levels - 1} levels of nesting, and a "
                f"config may have at most {MOST_LEVELS}; remove some, or remove repeated anchors"
            )
        self.record_node(node, ())

    def measure_node(self, node: yaml.Node, above: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers of nodes and of levels, anchors written out and long texts as several
        nodes; `ConfigError` for a cycle."""
        if id(node) in above:
            line = node.start_mark.line + 1
            raise ConfigError(f"{self.path}:{line}: the anchor refers to itself; expand it by hand")
        if id(node) not in self._sizes:
            path = (*above, id(node))
            inner = [self.measure_node(child, path) for _, child in _children(node)]
            text = node.value if isinstance(node, yaml.ScalarNode) else ""
            count = 1 + len(text) // NODE_CHARACTERS + sum(nodes for nodes, _ in inner)
            self._sizes[id(node)] = count, 1 + max((levels for _, levels in inner), default=0)
        return self._sizes[id(node)]

    def record_mapping(self, node: yaml.MappingNode, above: KeyPath) -> None:
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(
                    f"{self.path}:{line}: a key is {_kind(key)}, but keys must be text; rename it"
                )
            origin, path = f"{self.path}:{line}", (*above, str(key.value))
            if key.tag != "tag:yaml.org,2002:str":
                text = f"the key {key.value} is {_kind(key)}, but keys must be text"
                self.problems.append(ConfigProblem(origin, f"{text}; put it in quotes"))
            if key.value in lines:
                text = f"{'.'.join(path)} is set twice, first on line {lines[key.value]}"
                self.problems.append(ConfigProblem(origin, f"{text}; remove one of them"))
            lines[key.value] = line
            self.origins[path] = origin
            self.record_node(value, path)

    def record_node(self, node: yaml.Node, path: KeyPath) -> None:
        if isinstance(node, yaml.MappingNode):
            self.record_mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.record_node(item, (*path, str(index)))


def _children(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """Yield what a node holds, each with its name; the nodes of a mapping's keys have none."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield "", key
            yield str(key.value), value
    elif isinstance(node, yaml.SequenceNode):
        yield from ((str(index), item) for index, item in enumerate(node.value))


def _key_at(node: yaml.Node, index: int) -> KeyPath:
    """Return the key whose value holds the character at `index` of the file."""
    for name, value in _children(node):
        if name and value.start_mark.index <= index < value.end_mark.index:
            return (name, *_key_at(value, index))
    return ()


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: this config file does not exist; {_suggest(path)}") from error
    except IsADirectoryError as error:
        raise ConfigError(
            f"{path} is a folder, not a config file; {_suggest(path / 'x')}"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text; is it a config file? {_suggest(path)}"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; check its permissions"
        ) from error
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(
            f"{path} has more than {MOST_CHARACTERS:,} characters, the maximum for a config; is it "
            f"a config file? {_suggest(path)}"
        )
    return text


def _list_yaml_files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix in {".yaml", ".yml"} and f.is_file())


def _suggest(path: Path) -> str:
    """Say which YAML files lie where the user looked, the most similar names first."""
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    files = [file for file in _list_yaml_files(folder) if file != path]
    if not files and folder != Path("configs") and Path("configs").is_dir():
        folder = Path("configs")
        files = _list_yaml_files(folder)
    if not files:
        return (
            f"there is no YAML file in {folder.resolve()}; `agentrl init NAME` creates one, and "
            "`agentrl configs` lists those that come with agentrl by name"
        )
    similar = difflib.get_close_matches(path.name, [f.name for f in files], n=3, cutoff=0.5)
    names = [*similar, *(f.name for f in files if f.name not in similar)]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"YAML files in {folder}: {', '.join(names[:8])}{more}"


def _kind(node: yaml.Node) -> str:
    short = str(node.tag).removeprefix("tag:yaml.org,2002:")
    return KINDS.get(short, f"!!{short}")


def _reason(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or str(error).partition("\n")[0])

"""`agentrl init`: a project with an environment of one's own."""

import keyword
import re
import shutil
import sys
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from agentrl.cli.console import show_text
from agentrl.errors import ConfigError
from agentrl.runtime.distribution import DISTRIBUTION

FILES = {
    "env.py.template": "{name}_env.py",
    "config.yaml.template": "{name}.yaml",
    "test.py.template": "test_{name}.py",
    "pyproject.toml.template": "pyproject.toml",
    "README.md.template": "README.md",
    "gitignore.template": ".gitignore",
}
"""Destination of each template of `scaffold/`."""


def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Project name, such as shop or my-shop.")
    ],
    *,
    folder: Annotated[
        Path, typer.Option(help="Folder in which to create the project folder.")
    ] = Path(),
) -> None:
    """Create a project with an environment, a config, and a passing test."""
    project = make_project(name, folder)
    show_text(
        f"created {project}; next:\n  cd {project}\n  pytest\n  agentrl train "
        f"{module_name(name)}.yaml"
    )


def module_name(name: str) -> str:
    """Return the Python name of a project: `my_agent` for `my-agent`."""
    return name.replace("-", "_")


def _free(name: str) -> str:
    """Return a name, with `my_` before it where Python or a package has taken it."""
    module = module_name(name)
    is_taken = keyword.iskeyword(module) or module in sys.stdlib_module_names
    if not is_taken and name != DISTRIBUTION:
        spec = find_spec(module)
        is_taken = spec is not None and spec.origin is not None  # else a folder that lies here
    return f"my_{name}" if is_taken or name == DISTRIBUTION else name


def make_project(name: str, folder: Path) -> Path:
    """Write the project `folder/name`, whole or not at all; `ConfigError` for a taken name."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789") or "shop"
        raise ConfigError(
            f"{name!r} is not a valid Python module name; use lowercase letters, digits, '_' and "
            f"'-', such as {_free(near)}"
        )
    if _free(name) != name:
        raise ConfigError(
            f"{name!r} is already a Python keyword or the name of an installed package; choose "
            f"another name, such as {_free(name)}"
        )
    module = module_name(name)
    project = folder / name
    if project.exists() and (not project.is_dir() or any(project.iterdir())):
        raise ConfigError(f"{project} already exists and is not empty; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    try:
        for source, target in FILES.items():
            text = (files("agentrl.cli") / "scaffold" / source).read_text(encoding="utf-8")
            filled = Template(text).substitute(name=module, distribution=DISTRIBUTION)
            (partial / target.format(name=module)).write_text(filled, encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(project)
    except BaseException:
        shutil.rmtree(partial)
        raise
    return project

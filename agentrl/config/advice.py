"""Methods by the situation that they are for, for `agentrl methods --for` and docs/choosing.md."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from agentrl.errors import ConfigError

ADVICE = Path(__file__).with_name("method_advice.yaml")
"""All situations and methods."""
FIGURES = Path(__file__).with_name("method_figures.json")
"""Figure of each row of `benchmarks/methods.py` that was run; `--record` writes it."""
NO_FIGURE = "no figure; from the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodAdvice:
    """A method for a situation."""

    name: str
    """Name of the method in words."""
    overrides: tuple[str, ...]
    """Keys to set, as on the command line."""
    use: str
    """Its effect there, and its needs."""
    row: str = ""
    """Its row in `benchmarks/methods.py`."""
    result: str = ""
    """Figure from another part of docs/results.md."""

    def describe_evidence(self) -> str:
        """Return the figures that there are, or `NO_FIGURE`."""
        figure = read_figures().get(self.row, "")
        return "; ".join(filter(None, (figure, self.result))) or NO_FIGURE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSituation:
    """A situation, and methods for it, the first to try first."""

    meaning: str
    advice: tuple[MethodAdvice, ...]
    pages: tuple[str, ...] = ()
    """Names of the pages of docs/ that say more."""


@cache
def read_situations() -> Mapping[str, TrainingSituation]:
    """Return the situations by their names."""
    found: Mapping[str, Any] = yaml.safe_load(ADVICE.read_text(encoding="utf-8"))
    return {
        name: TrainingSituation(
            meaning=each["meaning"],
            advice=tuple(
                MethodAdvice(overrides=tuple(method.pop("overrides")), **method)
                for method in each["methods"]
            ),
            pages=tuple(each.get("pages", ())),
        )
        for name, each in found.items()
    }


@cache
def read_figures() -> Mapping[str, str]:
    """Return the figure of every row of `benchmarks/methods.py` that was run."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))


def find_situation(name: str) -> TrainingSituation:
    """Return a situation by name. Raises `ConfigError` for another one."""
    situations = read_situations()
    if name not in situations:
        raise ConfigError(
            f"{name!r} is not a situation; the situations are {', '.join(situations)}"
        )
    return situations[name]


def to_json(name: str) -> dict[str, Any]:
    """Return a situation as plain values."""
    situation = find_situation(name)
    return {
        "situation": name,
        "meaning": situation.meaning,
        "methods": [
            {
                "method": each.name,
                "overrides": list(each.overrides),
                "use": each.use,
                "row": each.row or None,
                "evidence": each.describe_evidence(),
            }
            for each in situation.advice
        ],
        "pages": [f"docs/{page}.md" for page in situation.pages],
    }


def markdown(names: Iterable[str] | None = None) -> str:
    """Return a table per situation, for the documentation; None is all."""
    parts: list[str] = []
    for name in read_situations() if names is None else names:
        situation = find_situation(name)
        parts += [f"## {name}", "", situation.meaning, ""]
        parts += ["| method | set | what it does | evidence |", "| --- | --- | --- | --- |"]
        for each in situation.advice:
            overrides = "<br>".join(f"`{override}`" for override in each.overrides)
            parts.append(f"| {each.name} | {overrides} | {each.use} | {each.describe_evidence()} |")
        links = ", ".join(f"[{page}]({page}.md)" for page in situation.pages)
        parts += ["", f"More: {links}.", ""]
    return "\n".join(parts)

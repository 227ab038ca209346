"""The methods as `agentrl methods` and docs/methods.md show them, and a user's own. Mutants seen
caught: `name` shown as a knob; needs of the defaults repeated for choices, or left out; every
method marked as the default; choices of null and of true or false forgotten; a slot found by its
beginning; a method or a slot left out of the tables; the slot asked for ignored; no markdown; a
source forgotten; needs or arguments of a user's function ignored.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
import yaml

from agentrl.config import method_table
from agentrl.config.learn import LearnSection
from agentrl.config.method_table import read_table, rows
from agentrl.config.run import RunConfig
from agentrl.config.schema import (
    element_of,
    first_line,
    iter_own_keys,
    lookup,
    method_of,
    sections_of,
)
from agentrl.config.section import ConfigSection, CustomMethod
from agentrl.errors import ConfigError
from agentrl.learn import catalogue
from agentrl.learn.catalogue import SLOTS, MethodSlot, describe_slot, variants
from agentrl.learn.method import LearnMethod, Need, always
from agentrl.learn.sample import groups_of
from agentrl.learn.trainer import PolicyTrainer
from tests.support.commands import agentrl
from tests.support.learning import advantage_of, model_of, trees_of

METHODS = [(slot, method) for slot in SLOTS for method in slot.methods]
IDS = [f"{slot.key}-{method_of(method.section)}" for slot, method in METHODS]


def test_the_documentation_holds_the_tables(root: Path) -> None:
    """When this fails: paste `agentrl methods --markdown` between the two marks."""
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8")
    _, begin, rest = text.partition("<!-- methods: begin -->\n")
    tables, end, _ = rest.partition("<!-- methods: end -->")
    assert begin
    assert end
    assert tables.strip() == method_table.markdown().strip()


def test_the_table_has_every_method() -> None:
    """When this fails: `python -m agentrl.learn.catalogue`."""
    text = method_table.format_table(catalogue.collect_entries())
    assert method_table.FILE.read_text(encoding="utf-8") == text


def test_the_table_names_keys_of_the_config_and_a_source_for_each_method() -> None:
    entries = [entry for each in read_table().values() for entry in each]
    for entry in entries:
        (key,) = lookup(RunConfig, entry.path)
        assert key.name == entry.slot or entry.path == entry.name
        sourceless = entry.default or entry.name in ("none", "uniform")
        assert entry.description
        assert entry.source or sourceless, f"{entry.path} {entry.name}"
    names = {(entry.slot, entry.name) for entry in entries}
    assert {("filter", "dapo"), ("other", "rollout.growth"), ("other", "learn.kl")} <= names
    assert len(names) == len(entries)
    for name in catalogue.CURATION_SOURCES:
        assert tuple(name.split(".")) in names


def test_the_documentation_says_what_each_need_costs(root: Path) -> None:
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8")
    for need in get_args(Need):
        assert f"| `{need}` |" in text


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.key)
def test_a_slot_has_the_methods_that_its_key_takes(slot: MethodSlot) -> None:
    annotation = LearnSection.model_fields[slot.key].annotation
    taken = sections_of(annotation) or sections_of(element_of(annotation))
    assert {*taken} == {CustomMethod, *(method.section for method in slot.methods)}
    names = [method_of(method.section) for method in slot.methods]
    assert len(set(names)) == len(names)


def test_every_key_that_takes_methods_is_a_slot() -> None:
    known = {slot.key for slot in SLOTS}
    for key in iter_own_keys(LearnSection):
        inner = key.sections or sections_of(element_of(key.field.annotation))
        assert (CustomMethod in inner) == (key.name in known)


@pytest.mark.parametrize(("slot", "method"), METHODS, ids=IDS)
def test_a_method_says_what_it_is_and_where_it_comes_from(
    slot: MethodSlot, method: LearnMethod[object]
) -> None:
    assert first_line(method.section)
    assert method.source or method_of(method.section) == "none"
    for key in catalogue.knobs(method.section):
        assert key.doc, f"{slot.key} {method_of(method.section)}: {key.name} has no docstring"
        assert not key.required, f"{key.name} has no default"


class Blue(ConfigSection):
    """A colour."""

    name: Literal["blue"] = "blue"
    tone: Literal["light", "dark"] = "light"
    shiny: bool = False
    depth: int | None = None


def blue_needs(section: Blue) -> frozenset[Need]:
    return frozenset({"values", *(["entropies"] if section.tone == "dark" else [])})  # pyright: ignore[reportReturnType]


def test_a_row_holds_knobs_and_needs() -> None:
    method: LearnMethod[Any] = LearnMethod(
        Blue, lambda section: section, "Somebody 2026", blue_needs
    )
    slot = MethodSlot("advantage", (method,))
    (row,) = rows(describe_slot(slot))
    assert row == (
        "blue",
        "A colour.",
        "tone: light, shiny: false, depth: null",
        "values; entropies with tone: dark",
        "Somebody 2026",
    )
    (row,) = rows(describe_slot(slot), mark="`")
    assert row[2:4] == (
        "`tone: light`, `shiny: false`, `depth: null`",
        "values; entropies with `tone: dark`",
    )
    words = [words for words, _ in variants(Blue)]
    assert words == ["tone: light", "tone: dark", "shiny: true", "shiny: false", "depth: null"]


def test_the_default_of_a_slot_is_marked() -> None:
    marked = {
        slot: [row[0] for row in rows(entries) if "default" in row[0]]
        for slot, entries in read_table().items()
    }
    assert marked["advantage"] == ["grpo (default)"]
    assert marked["correction"] == ["tis (default)"]
    assert marked["sampler"] == ["stream (default)"]
    assert marked["rejection"] == marked["selection"] == marked["other"] == []


def test_one_slot_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert [*read_table("loss")] == ["loss"]
    with pytest.raises(ConfigError, match=r"'los' is not a slot; .*advantage, loss, .*, other"):
        read_table("los")
    code, out, _ = agentrl(capsys, "methods", "proximal")
    assert code == 0
    assert "learn.proximal" in out
    assert "arXiv" in out
    assert "learn.loss" not in out
    _, out, _ = agentrl(capsys, "methods")
    assert [slot.key for slot in SLOTS if f"learn.{slot.key}" not in out] == []
    assert "curation.sampler" in out
    assert "reset_every: null" in agentrl(capsys, "methods", "other")[1]
    assert agentrl(capsys, "methods", "--markdown")[1].strip() == method_table.markdown().strip()
    code, _, err = agentrl(capsys, "methods", "los")
    assert (code, err.split(";")[0]) == (2, "error: 'los' is not a slot")


def test_the_example_of_the_documentation_trains(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8")
    text = text[text.index("## A method of your own") :]
    (source,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert source.startswith("# my_methods.py\n")
    (tmp_path / "my_methods.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    section = LearnSection.model_validate(yaml.safe_load(config)["learn"])
    trainer = PolicyTrainer(model_of(), section, seed=0)
    before = {name: value.clone() for name, value in trainer.weights().items()}
    figures = trainer.step(trees_of())
    assert figures["optimizer/updates"] == 1.0
    assert any((before[name] != value).any() for name, value in trainer.weights().items())
    (group, *_) = groups_of(trees_of())
    unsure = [replace(s, entropies=np.ones(len(s.mask))) for s in group.samples]
    (first, *_) = advantage_of(section.advantage)([replace(group, samples=tuple(unsure))])
    assert first.tolist() == pytest.approx([(0.0 - 1.5) * 1.2] * len(first))


def test_the_first_example_of_the_documentation_is_a_config(root: Path) -> None:
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8")
    (first, *_) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    section = LearnSection.model_validate(yaml.safe_load(first)["learn"])
    assert section.rejection[0].name == "veto"


def test_needs_that_no_knob_changes_are_always_there() -> None:
    assert always("values")(Blue()) == always("values")(Blue(tone="dark")) == {"values"}

"""Extras of the distribution: each module is in the extra that the errors name.

Mutants seen caught: a module in another extra; a module that is installed told as missing.
"""

import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.runtime.extras import (
    EXTRAS,
    check_installed,
    find_missing,
    install_command,
    list_extras,
    missing_module,
)
from agentrl.runtime.imports import import_named

NOT_HERE = {"datasets": "datasets", "math_verify": "math-verify", "reasoning_gym": "reasoning-gym"}
"""Distributions of modules that the tests' interpreter may lack."""


def test_a_module_is_installed_by_its_extra(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert extras.keys() == {*list_extras(), "all"}
    owners = packages_distributions()
    for module, extra in EXTRAS.items():
        names = {
            name.lower().replace("_", "-")
            for name in owners.get(module, [NOT_HERE.get(module, module)])
        }
        asked = " ".join(extras[extra]).lower()
        assert any(name in asked for name in names), f"{module}: {names} not in [{extra}]"
    wanted = extras["all"][0].partition("[")[2].rstrip("]").split(",")
    assert {*wanted} == {*list_extras()} - {"reasoning", "vllm"}


def test_a_missing_module_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert [*find_missing("a run", "numpy", "torch", "wandb")] == [
        "a run needs torch and wandb, which are not installed: "
        "pip install 'agentrl-gym[train,sinks]'"
    ]
    with pytest.raises(ConfigError, match="needs wandb, which is not installed"):
        check_installed("it", "numpy", "wandb")
    with pytest.raises(ConfigError, match=r"my:id needs torch, .*\[train\]'"):
        import_named("torch.not_imported_before", "my:id")
    assert missing_module(ModuleNotFoundError("", name="torch.nn")) == "torch"
    assert missing_module(ModuleNotFoundError("", name="my_module")) is None


def test_a_module_that_is_there_is_not_missing() -> None:
    """A part of it that cannot be imported is another fault."""
    assert missing_module(ModuleNotFoundError("", name="torch.no_such_part")) is None
    assert [*find_missing("a run", "torch")] == []


def test_modules_of_one_extra_are_one_command() -> None:
    assert install_command("torch", "transformers") == "pip install 'agentrl-gym[train]'"

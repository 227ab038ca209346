"""Configs that come with agentrl, by name.

Mutants seen caught: a file of the working folder passed over; the line of the machine shown.
"""

from pathlib import Path

import pytest

from agentrl.config import packaged
from agentrl.config.load import load_config
from agentrl.config.packaged import find_config_file, list_configs
from agentrl.errors import ConfigError


def test_every_config_has_a_name_and_a_sentence(root: Path) -> None:
    found = list_configs()
    assert {each.file for each in found} == {*root.glob("configs/**/*.yaml")}
    assert {"quickstart", "methods/grpo", "recipes/qwen3-8b-8gpu"} <= {each.name for each in found}
    for each in found:
        said = each.describe()
        assert said.endswith("."), each.name
        assert "Machine" not in said


def test_a_name_is_loaded_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart").run.name == "quickstart"
    assert load_config(Path("methods/grpo"), {"run.steps": 3}).run.steps == 3
    with pytest.raises(ConfigError, match=r"quickstrt: .*`agentrl configs` lists those"):
        load_config("quickstrt")


def test_a_base_may_be_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beside the config wins, one in the working folder does not."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("quickstart").write_text("run: {steps: 1}\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: quickstart\nrun: {name: mine}\n")
    config = load_config(mine)
    assert (config.run.name, config.env.id) == ("mine", "code/Mix-v0")
    (tmp_path / "quickstart").write_text("run: {steps: 7}\nenv: {id: code/ChainSum-v0}\n")
    assert load_config(mine).run.steps == 7
    mine.write_text("base: quickstrt\n")
    with pytest.raises(ConfigError, match=r"quickstrt: .*\(named by `base:` in .*mine.yaml"):
        load_config(mine)


def test_a_file_in_the_working_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("run: {name: mine}\n")
    assert find_config_file(Path("quickstart")) == Path("quickstart")
    assert find_config_file(Path("quickstart.yaml")) == Path("quickstart.yaml")


def test_the_folder_of_a_wheel_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only.yaml").write_text("# One of a kind. And more.\n")
    monkeypatch.setattr(packaged, "FOLDERS", (tmp_path, *packaged.FOLDERS))
    assert [(each.name, each.describe()) for each in list_configs()] == [("only", "One of a kind.")]

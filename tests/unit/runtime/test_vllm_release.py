"""Which releases of vLLM are taken, and what is said of the others."""

import re
import tomllib
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.runtime.vllm_release import NEWEST, OLDEST, check_release


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "dev", "0.0.0.dev7"])
def test_releases_within_the_bounds_and_unnumbered_builds_are_taken(version: str) -> None:
    check_release(version)


@pytest.mark.parametrize("version", ["0.31.1", "0.33.0", "1.0.0"])
def test_another_release_is_refused_with_the_way_out(version: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"vLLM {version} is installed")) as refused:
        check_release(version)
    assert "pip install 'vllm>=0.32,<0.33'" in str(refused.value)


def test_the_extra_has_the_same_bounds(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["vllm"]
    assert requirement == f"vllm>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"

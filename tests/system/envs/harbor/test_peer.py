"""Harbor's own package reads what we read: task files, and reward files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, VerifierError
from agentrl_envs.harbor.rewards import parse_rewards
from agentrl_envs.harbor.task_config import TaskConfig, parse_task_config
from tests.support.foreign_packages import harbor_configs, harbor_rewards
from tests.support.harbor_features import FEATURES

pytestmark = pytest.mark.harbor
EXAMPLES = Path(__file__).parents[4] / "examples" / "harbor"
TEXTS = (
    "",
    'version = "1.0"\nsource = "x"\n[metadata]\nanything = [1, "a"]',
    '[task]\nname = "org/name"\nversion = "2"\nkeywords = ["a"]\n[[task.authors]]\nname = "A"',
    "[agent]\ntimeout_sec = 1.5\nuser = 0\n[verifier]\ntimeout_sec = 3\nuser = 'me'",
    "[environment]\nmemory = '1.5G'\nstorage = '100M'\nallow_internet = true\ncpus = 0.5",
    "[environment]\nmemory = '2048K'\nallow_internet = false",
    "[environment]\nallow_internet = false\nnetwork_mode = 'public'",
    "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['pypi.org', '10.0.0.0/8']",
    "[environment]\nos = 'Linux'\ncpus = 2.0\nmemory_mb = 10\nenv = {A = '${A}'}\nworkdir = '/x'",
    "[environment.healthcheck]\ncommand = 'true'\nstart_period_sec = 2",
    "[verifier.environment]\ndocker_image = 'a:b'\nmemory = '1G'",
    "[verifier]\nenvironment_mode = 'separate'\n[[verifier.collect]]\ncommand = 'x'",
    "artifacts = ['/a', {source = '/b', destination = 'c', exclude = ['*.o']}]",
    "[solution]\nenv = {A = 'b'}",
    # refused by both
    "= 1",
    "[environment]\nmemory = '2T'",
    "[environment]\nmemory = '2G'\nmemory_mb = 1",
    "[environment]\nnetwork_mode = 'some'",
    "[environment]\nallowed_hosts = ['a.org']",
    "[agent]\nnetwork_mode = 'public'\nallowed_hosts = ['a.org']",
    "[agent]\ntimeout_sec = 'soon'",
    "[environment.healthcheck]\nretries = 1",
    "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1",
    "artifacts = ['/a/../b']",
    "artifacts = [{destination = 'a'}]",
    "[task]\nname = 'plain'",
)
REWARDS: tuple[tuple[bytes | None, bytes | None], ...] = (
    (None, b"1"),
    (None, b" 1_0.5\n"),
    (None, b"-0"),
    (None, b""),
    (None, b" "),
    (None, b"nan"),
    (None, b"-inf"),
    (None, b"1e400"),
    (None, b"1,5"),
    (None, b"\xff"),
    (None, b"true"),
    (None, b"1_0"),
    (None, b"1__0"),
    (None, b"0x1"),
    (None, b"1\r\n"),
    (None, b"1 2"),
    (None, b"\xef\xbb\xbf1"),
    (None, "\uff11".encode()),
    (None, "\u0663.\u0665\u00a0".encode()),
    (None, "\u00bd".encode()),
    (None, b"1" * 400),
    (None, b"0." + b"1" * 5000),
    (b'{"reward": false}', None),
    (b'{"reward": "1_0"}', None),
    (b'{"reward": 1_0}', None),
    ('{"reward": \uff11}'.encode(), None),
    (b"true", b"1"),
    (b'{"a": 1e-400, "b": -0.0}', None),
    (b" \n", b"1"),
    (b'{"reward": 0.5}', b"1"),
    (b'{"a": 1, "b": -2}', None),
    (b'{"reward": true}', None),
    (b'{"a": 1, "a": 3}', None),
    (b"{}", b"1"),
    (b"", b"1"),
    (b"null", b"1"),
    (b"1", b"1"),
    (b"[1]", b"1"),
    (b'"x"', b"1"),
    (b'{"a": "1"}', b"1"),
    (b'{"a": null}', b"1"),
    (b'{"a": {"b": 1}}', b"1"),
    (b'{"a": NaN}', b"1"),
    (b'{"a": 1e999}', b"1"),
    (b"{", b"1"),
    (b"\xef\xbb\xbf{}", b"1"),
    (b"\xff", b"1"),
    (b'{"a": 1} x', b"1"),
)


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Yield every value of ours that is another one there; what we do not read is not compared."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from differences(value, theirs.get(key), f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            other = {"source": other} if isinstance(other, str) and isinstance(one, dict) else other
            yield from differences(
                {**one} if isinstance(one, dict) else one, other, f"{where}.{at}"
            )
    elif ours != theirs and not (theirs is None and ours in ([], {}, None)):
        yield f"{where}: {ours!r}, harbor {theirs!r}"


def read_ours(text: str) -> TaskConfig | None:
    try:
        return parse_task_config(text, "task.toml")
    except ConfigError:
        return None


def test_harbor_reads_the_same_of_a_task_file(tmp_path: Path) -> None:
    files = sorted(EXAMPLES.glob("*/task.toml"))
    features = [feature.toml for feature in FEATURES.values()]
    texts = [*TEXTS, *features, *(file.read_text() for file in files)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    theirs = harbor_configs(tmp_path / "texts.json")
    assert len(files) >= 5
    assert sum(config is None for config in theirs) >= 10
    assert None not in theirs[len(TEXTS) :]
    for text, other in zip(texts, theirs, strict=True):
        ours = read_ours(text)
        assert (ours is None) == (other is None), text
        if ours is not None:
            assert list(differences(ours.model_dump(mode="json"), other)) == [], text


def test_harbor_reads_the_same_of_a_reward_file(tmp_path: Path) -> None:
    for at, (json_file, text_file) in enumerate(REWARDS):
        folder = tmp_path / f"{at:03}"
        folder.mkdir()
        for name, content in (("reward.json", json_file), ("reward.txt", text_file)):
            if content is not None:
                (folder / name).write_bytes(content)
    theirs = harbor_rewards(tmp_path)
    assert len(theirs) == len(REWARDS)
    for files, rewards in zip(REWARDS, theirs, strict=True):
        try:
            ours = parse_rewards(*files)
        except VerifierError:
            ours = None
        assert ours == rewards, files

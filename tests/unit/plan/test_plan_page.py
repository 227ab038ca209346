"""The page of plans beside what is printed: keys of the JSON.

Mutations that were seen to fail here: a key that is not on the page, one that is there alone.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig
from agentrl.plan.machine import find_machine
from agentrl.plan.model_shape import find_shape
from agentrl.plan.report import to_json
from agentrl.plan.run_plan import change_config, plan_run
from agentrl.simulate.synthetic import synthetic

PAGE = Path(__file__).parents[3] / "docs" / "plan.md"
SMALL = {
    "env": {"id": "code/ChainSum-v0"},
    "policy": {"make": {"hidden_size": 64, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 32}},
    "engine": {"slots": 8, "context_tokens": 256},
    "sampling": {"max_turn_tokens": 32},
    "rollout": {"tasks_per_step": 2, "group_size": 4, "concurrency": 8, "max_turns": 2},
    "learn": {"micro_batch_tokens": 512},
}
MAPPINGS = ("changes",)
"""Values whose keys are a config's."""


def list_keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of plain values; `[]` stands for the items of a list."""
    if isinstance(value, dict) and path not in MAPPINGS:
        for key, one in value.items():
            yield from list_keys(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from list_keys(value[0], f"{path}[]")
    else:
        yield path


def test_every_key_of_the_json_is_on_the_page() -> None:
    config = RunConfig.model_validate(SMALL)
    full = change_config(config, {"engine.slots": 10**9})
    machine, trace = find_machine("1xH100"), synthetic("agentic")
    found: set[str] = set()
    for one, changes in ((config, None), (full, {"engine.slots": 8})):
        plan = plan_run(one, find_shape(one), machine, trace)
        printed = json.loads(json.dumps(to_json(plan, changes)))
        found |= set(list_keys(printed)) - {key for key, rows in printed.items() if rows == []}
    section = PAGE.read_text(encoding="utf-8").split("## JSON")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| ", section, re.MULTILINE)
    named = [key for row in rows for key in re.findall(r"`([^`]+)`", row)]
    assert len(named) == len(set(named))
    assert set(named) == found | {"warnings"}

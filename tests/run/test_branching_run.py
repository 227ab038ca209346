"""A whole run that branches, on the code environment with real sandboxes; its log and its words."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.app import app
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.metrics.writer import read_metrics
from agentrl.rollout.branching.aepo import ObservedSignals
from agentrl.rollout.branching.decision import explain
from agentrl.rollout.branching.log import (
    BranchLog,
    LoggedDecision,
    LoggedGroup,
    read_log,
)
from agentrl.run.train import train

CONFIG = """
run: {{name: tiny, folder: {folder}, steps: 2, checkpoint_every: 1}}
env: {{id: code/ChainSum-v0, kwargs: {{families: {{chain_sum: {{min_terms: 2, max_terms: 2}}}}}}}}
policy: {{make: {{hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, head_dim: 16}}}}
warmstart: {{steps: 60, batch_size: 8, demonstrations: 60}}
engine: {{slots: 16, context_tokens: 512}}
sampling: {{max_turn_tokens: 64}}
rollout:
  mode: {mode}
  tasks_per_step: 2
  group_size: 6
  max_turns: 4
  branching: {branching}
learn: {{optimizer: {{learning_rate: 1.0e-3}}}}
evaluate: {{tasks: 2}}
metrics: {{tensorboard: false}}
"""
AEPO = "{topology: aepo, base: 0.05, probe_tokens: 6, roots: 2}"


def config_file(folder: Path, branching: str = AEPO, mode: str = "sync") -> Path:
    path = folder / "tiny.yaml"
    path.write_text(CONFIG.format(folder=folder / "runs", branching=branching, mode=mode))
    return path


@pytest.mark.namespaces
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_branches_and_says_why(tmp_path: Path, mode: str) -> None:
    result = train(config_file(tmp_path, mode=mode))
    logged = [*read_log(result.folder)]
    decisions = [one.decision for one in logged if isinstance(one, LoggedDecision)]
    groups = [one for one in logged if isinstance(one, LoggedGroup)]
    children = [child for decision in decisions for child in decision.children]
    assert {1, 2} <= {one.step for one in logged}
    assert children
    copies = [copied for group in groups for copied in group.copies]
    assert [copied.strategy for copied in copies] == ["native"] * len(copies)
    assert not [copied.error for copied in copies if copied.error]
    first, second = read_metrics(result.folder)
    assert first["branching/copies"] + second["branching/copies"] >= 1
    assert 0 < first["branching/shared_tokens"] < 1
    assert first["branching/copy_seconds_max"] > 0
    said = CliRunner().invoke(app, ["branches", str(result.folder), "--why"])
    assert said.exit_code == 0
    for decision in decisions:
        assert explain(decision) in said.output
    table = CliRunner().invoke(app, ["branches", str(result.folder)])
    assert groups[0].task in table.output
    alone = CliRunner().invoke(
        app, ["branches", str(result.folder), "--task", groups[0].task, "--why"]
    )
    assert groups[0].task in alone.output
    assert len(alone.output) < len(said.output)


@pytest.mark.namespaces
def test_a_resumed_run_writes_its_later_steps_once(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    folder = train(path, {"run.steps": 1}).folder
    seen = BranchLog(folder).resume_after(1)
    assert seen.roots > 0
    before = [*read_log(folder)]
    BranchLog(folder).resume_after(0)
    assert not list(read_log(folder))
    (folder / "branches.jsonl").unlink()
    assert BranchLog(folder).resume_after(1) == ObservedSignals()
    assert before
    train(path, {"run.steps": 2}, resume=True)
    assert {one.step for one in read_log(folder)} == {2}


def test_a_torn_line_is_none_and_a_broken_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "branches.jsonl"
    with pytest.raises(ConfigError, match="no such file"):
        list(read_log(tmp_path))
    line = '{"step": 1, "group": 0, "task": "t", "observed": null, "copies": []}'
    file.write_text(f'{line}\n{{"step": 2, "gro')
    assert [one.step for one in read_log(tmp_path)] == [1]
    BranchLog(tmp_path).resume_after(5)
    assert file.read_text().count("\n") == 1
    file.write_text(f"{line}\n{{}}\n")
    with pytest.raises(ConfigError, match=r"branches\.jsonl:2 is neither a decision nor a group"):
        list(read_log(tmp_path))


@pytest.mark.parametrize(
    ("branching", "said"),
    [
        ("{beam: 3}", "rollout.branching.beam is 3, but it has no effect with"),
        ("{topology: arpo, penalty: 0.1}", "choose one of aepo, aepo_paper"),
        ("{topology: tree_grpo, trees: 4}", "= 12 trajectories, but rollout.group_size is 6"),
        ("{topology: fan_out}", "turns is empty, so nothing branches"),
        ("{topology: aepo, probe_tokens: 64}", "a turn must be longer than its probe"),
        ("{topology: aepo, base: 0}", "set it above 0"),
    ],
)
def test_what_decides_nothing_is_refused(tmp_path: Path, branching: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace(".", r"\.").replace("(", r"\(")):
        load_config(config_file(tmp_path, branching))


def test_redundancy_does_not_go_with_branching(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stopping some of them would cut off its branches"):
        load_config(config_file(tmp_path), {"rollout.redundancy": 1})

"""Stored trajectories scored again by today's checker, from the record or by replay.

Seen caught: the first observation, or later ones, not compared; an earlier end played past; a later
one scored; another limit; an end of another kind called the same; components lost; no retry; worlds
left open; what was cut off judged; the recorded task for today's; another question under the same
id; what says never played again; an error in a group of errors; a task's plays under one number; a
reward with a step of its own scored from the record; one of words by replay.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl.authoring.tool_env import ToolEnv
from agentrl.cli.app import app
from agentrl.config.load import load_config
from agentrl.config.run import RunConfig
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, Env, Info, Observation, RescoreBy, Step, rescored_by
from agentrl.errors import ConfigError
from agentrl.evaluation.record import EvaluationRecord
from agentrl.evaluation.rescore import RescoreResult, TrajectoryRescorer
from agentrl.message import Message
from agentrl.policy import GenerateRequest
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.run.build import build_evaluation, build_evaluation_tasks
from agentrl.run.evaluation_folder import CONFIG, POLICY, STORE
from agentrl.run.reverify import recordings_of, reverify
from agentrl.runtime.atomic_files import write_json
from agentrl.runtime.progress import SilentProgress
from agentrl.store.reader import StoreReader
from agentrl.store.settings import StoreSettings
from agentrl.task import Split, Task
from agentrl.trajectory import Failed, Finished, Truncated
from benchmarks.letters import END, LetterChat, ids

TASKS = 6
SAMPLES = 2


class Doors(BaseEnv):
    """Two turns behind doors; what `pays` holds pays at the last, and half at every other."""

    broken = 0
    """How many resets raise from now on."""

    def __init__(
        self,
        pays: str = "a",
        *,
        turns: int = 2,
        opening: str = "",
        shown: str = "a door",
        answers: str = "a",
        part: float = 0.0,
        rescore_by: RescoreBy = "replay",
        truncates: bool = False,
    ) -> None:
        self.pays, self.turns, self.opening, self.shown = pays, turns, opening, shown
        self.answers, self.part, self.truncates = answers, part, truncates
        self.rescore_by = rescore_by
        self.turn, self.task = 0, Task(prompt="none")
        self.closed = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [
            Task(prompt=f"{split} {n}", id=f"{split}-{n}", answer=self.answers, split=split)
            for n in range(TASKS)
        ]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        if Doors.broken:
            Doors.broken -= 1
            raise RuntimeError("the hinge is gone")
        assert options is not None
        self.task, self.turn = options["task"], 0
        messages = (*self.task.messages, Message("user", f"{self.opening}{options['sample']}"))
        return Observation(messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        self.turn += 1
        over = self.turn == self.turns
        pays = action.text[:1] in self.pays and self.task.answer == self.answers
        reward = float(pays) if over else self.part
        info: Info = {"reward_components": {"door": reward}}
        shown = Observation((Message("user", f"{self.shown} {over} {self.pays * over}"),))
        return shown, reward, over and not self.truncates, over and self.truncates, info

    async def close(self) -> None:
        self.closed += 1


def words(task: Task, messages: Sequence[Message]) -> dict[str, float]:
    """Judge what was said last."""
    asked = [m.text for m in messages if m.role == "user"]
    assert asked[0] == task.messages[0].text
    return {"said": float(messages[-1].text[:1] == task.data["pays"])}


def spoken(pays: str = "a", *, tools: int = 0) -> ToolEnv:
    """Return an environment whose reward is a function of the conversation."""

    def tasks(split: Split, seed: int) -> Iterable[Task]:
        for n in range(TASKS):
            yield Task(prompt=f"{split} {n}", id=f"{split}-{n}", data={"pays": pays})

    def state(task: Task, messages: Sequence[Message], toolbox: object) -> dict[str, float]:
        assert toolbox is not None
        return words(task, messages)

    return ToolEnv(tasks=tasks, reward=state if tools else words)


def talk(request: GenerateRequest) -> Sequence[int]:
    return (*ids("ab"[request.seed % 2]), END)


def config_of(env: str, *, turns: int = 8, **kwargs: Any) -> str:
    return (
        f'env: {{id: "{__name__}:{env}", kwargs: {json.dumps(kwargs)}}}\n'
        f"evaluate: {{tasks: {TASKS}, samples_per_task: {SAMPLES}}}\n"
        f"rollout: {{max_turns: {turns}, retries: 1}}\n"
    )


def made(folder: Path, config_text: str) -> RunConfig:
    folder.mkdir()
    (folder / "config.yaml").write_text(config_text)
    (folder / POLICY).write_text("{}")
    return load_config(folder / "config.yaml")


async def played(folder: Path, config_text: str, make_env: Any) -> Path:
    """Keep an evaluation in a folder, as `agentrl eval --out` does."""
    config = made(folder, config_text)
    rollouts = RolloutRunner(
        make_env=make_env,
        engine=ScriptedEngine(talk),
        chat=LetterChat(),
        limits=EpisodeLimits(max_turns=config.rollout.max_turns),
        retries=0,
    )
    tasks = build_evaluation_tasks(config, make_env())
    settings = StoreSettings(keep="all")
    with EvaluationRecord.open(folder / STORE, settings, seed=0, resume=False) as record:
        report = await build_evaluation(config, tasks).run(
            rollouts, SilentProgress(), record=record
        )
    write_json(folder / "report.json", report.to_json())
    return folder


async def again(
    folder: Path, make_env: Any, *, retries: int = 0, by: Any = None
) -> list[RescoreResult]:
    rescorer = TrajectoryRescorer(make_env=make_env, retries=retries, by=by)
    with StoreReader(folder / STORE) as store:
        recordings = [one for id in store.groups() for one in recordings_of(store.group(id))]
    assert len(recordings) == TASKS * SAMPLES
    return [await rescorer.rescore(one) for one in recordings]


def verdicts(found: Sequence[RescoreResult]) -> set[str]:
    return {one.verdict for one in found}


@pytest.fixture
async def doors(tmp_path: Path) -> Path:
    return await played(tmp_path / "doors", config_of("Doors"), Doors)


async def test_the_same_checker_finds_the_same(doors: Path) -> None:
    found = await again(doors, Doors)
    assert verdicts(found) == {"same"}
    assert {one.after for one in found} == {0.0, 1.0}
    assert all(one.before == one.after for one in found)
    assert all(one.outcome == one.recording.leaf.outcome for one in found)


async def test_another_checker_finds_others(doors: Path) -> None:
    """What the world says at the end may change with the checker: nobody acted on it."""
    found = await again(doors, lambda: Doors("b"))
    assert verdicts(found) == {"changed"}
    assert all(one.before is not None and one.after == 1.0 - one.before for one in found)
    assert all(one.components == {"door": one.after} for one in found)


async def test_a_reward_on_the_way_counts(doors: Path) -> None:
    found = await again(doors, lambda: Doors(part=0.25))
    assert all(one.after == (one.before or 0.0) + 0.25 for one in found)


@pytest.mark.parametrize(
    ("world", "why"),
    [
        ({"opening": "other"}, "the first observation differs"),
        ({"shown": "a wall"}, "the answer to turn 1 of 2 differs"),
    ],
)
async def test_another_world_has_no_score(doors: Path, world: dict[str, Any], why: str) -> None:
    found = await again(doors, lambda: Doors(**world))
    assert verdicts(found) == {"diverged"}
    assert {(one.after, one.why) for one in found} == {(None, why)}


async def test_an_end_that_comes_sooner_or_later(doors: Path) -> None:
    sooner = await again(doors, lambda: Doors(turns=1))
    assert {(one.why, one.before == one.after) for one in sooner} == {
        ("it now ends at turn 1 of 2", True)
    }
    later = await again(doors, lambda: Doors(turns=3))
    assert {(one.verdict, one.after) for one in later} == {("goes_on", None)}


async def test_an_end_of_another_kind_is_a_change(doors: Path) -> None:
    found = await again(doors, lambda: Doors(truncates=True))
    assert {(type(one.outcome), one.verdict) for one in found} == {(Truncated, "changed")}


async def test_what_the_run_ended_ends_there_again(tmp_path: Path) -> None:
    """The limit of the run stopped it, and stops it today."""
    make = lambda: Doors(turns=9, part=0.5)  # noqa: E731
    folder = await played(tmp_path / "cut", config_of("Doors", turns=3), make)
    found = await again(folder, make)
    assert {(one.verdict, one.outcome) for one in found} == {("same", Truncated("turns", 1.5))}
    ends = await again(folder, lambda: Doors(turns=3, part=0.5))
    assert {type(one.outcome) for one in ends} == {Finished}
    assert verdicts(ends) == {"changed"}


async def test_a_failure_is_no_score_then_or_now(tmp_path: Path, doors: Path) -> None:
    try:
        Doors.broken = 2
        folder = await played(tmp_path / "broken", config_of("Doors"), Doors)
        found = await again(folder, Doors)
        assert [one.verdict for one in found].count("broke_then") == 2
        Doors.broken = 1
        assert verdicts(await again(doors, Doors, retries=1)) == {"same"}
        Doors.broken = 1
        broke = [one for one in await again(doors, Doors) if one.verdict != "same"]
    finally:
        Doors.broken = 0
    assert [one.after for one in broke] == [None]
    outcome = broke[0].outcome
    assert isinstance(outcome, Failed)
    assert "the hinge is gone" in outcome.error


async def test_every_world_is_closed(doors: Path) -> None:
    made: list[Doors] = []

    def make() -> Env:
        made.append(Doors(shown="a wall"))
        return made[-1]

    await again(doors, make)
    assert [one.closed for one in made] == [1] * TASKS * SAMPLES


class OnlyFromRecord(ToolEnv):
    """Cannot be reset any more."""

    async def reset(self, **_: Any) -> Any:
        raise RuntimeError("the tools are gone")


async def test_a_reward_of_words_needs_no_world(tmp_path: Path) -> None:
    folder = await played(tmp_path / "words", config_of("spoken"), spoken)
    found = await again(folder, lambda: OnlyFromRecord(tasks=spoken().tasks, reward=words))  # pyright: ignore[reportArgumentType]
    assert verdicts(found) == {"same"}
    assert {one.after for one in found} == {0.0, 1.0}
    assert all(one.components == {"said": one.after} for one in found)

    def other(task: Task, messages: Sequence[Message]) -> float:
        return 1.0 - words(task, messages)["said"]

    turned = await again(folder, lambda: OnlyFromRecord(tasks=spoken().tasks, reward=other))  # pyright: ignore[reportArgumentType]
    assert all(one.after == 1.0 - (one.before or 0.0) for one in turned)


async def test_what_was_cut_off_was_never_judged(tmp_path: Path) -> None:
    """A trajectory that the run stopped keeps the reward it had, whatever the checker would say."""
    folder = await played(tmp_path / "cut", config_of("Doors", turns=1), lambda: Doors(part=0.5))
    found = await again(folder, spoken, by="record")
    assert {(one.verdict, one.after) for one in found} == {("same", 0.5)}


class Stepping(ToolEnv):
    """Scores in a `step` of its own."""

    async def step(self, action: Action) -> Step:
        return await super().step(action)


def test_how_an_environment_is_scored_again() -> None:
    assert rescored_by(spoken()) == "record"
    assert rescored_by(spoken(tools=1)) == "replay"
    assert rescored_by(Stepping(tasks=lambda split, seed: (), reward=words)) == "replay"
    assert rescored_by(BaseEnv()) == "replay"  # pyright: ignore[reportArgumentType]


def run(folder: Path, *overrides: str, **settings: Any) -> Any:
    return reverify(folder, overrides, progress=SilentProgress(), **settings)


@pytest.fixture(name="kept")
def a_kept_evaluation(tmp_path: Path) -> Path:
    import asyncio

    return asyncio.run(played(tmp_path / "kept", config_of("Doors"), Doors))


def test_the_report_says_what_changed(kept: Path) -> None:
    before = json.loads((kept / "report.json").read_text())
    passed = round(before["pass@1"]["mean"] * TASKS * SAMPLES)
    assert 0 < passed < TASKS * SAMPLES
    found = run(kept, "env.kwargs.pays=ab")
    assert found.verdicts == {"changed": TASKS * SAMPLES - passed, "same": passed}
    comparison = found.comparison()
    assert comparison.a.mean == pytest.approx(before["pass@1"]["mean"])
    assert comparison.b.mean == 1.0
    told = json.loads(json.dumps(found.to_json()))
    assert told["about"] == before["about"]
    assert [one["reward"] for one in told["samples"]] == [1.0] * TASKS * SAMPLES
    assert sorted(one["before"] for one in told["samples"]) == sorted(
        one["reward"] for one in before["samples"]
    )


def test_the_answers_of_today(kept: Path) -> None:
    """Today's answer is another one: the recorded tasks' answers are wrong by it."""
    recorded = run(kept, "env.kwargs.answers=z")
    assert recorded.comparison().b.mean == 0.0
    today = run(kept, "env.kwargs.answers=z", tasks="today")
    assert today.verdicts == {"same": TASKS * SAMPLES}
    assert (recorded.other_tasks, today.other_tasks) == (0, 0)


def test_a_task_that_asks_something_else_is_not_todays(kept: Path) -> None:
    found = run(kept, f'env.id="{__name__}:Riddles"', "env.kwargs={}", tasks="today")
    assert found.other_tasks == TASKS * SAMPLES


class Riddles(Doors):
    """The same ids, other questions."""

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [
            Task(prompt=f"why {n}", id=f"{split}-{n}", answer="a", split=split)
            for n in range(TASKS)
        ]


def test_the_newest_groups_alone(kept: Path) -> None:
    assert len(run(kept, limit=2).found) == 2 * SAMPLES


def test_what_cannot_be_scored_again_says_so(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="declares that its trajectories cannot be re-scored"):
        run(kept, "env.kwargs.rescore_by=never")
    assert run(kept, "env.kwargs.rescore_by=never", how="replay").verdicts == {
        "same": TASKS * SAMPLES
    }
    (kept / POLICY).unlink()
    with pytest.raises(ConfigError, match="is a run, whose current train tasks"):
        run(kept, tasks="today")
    with pytest.raises(ConfigError, match="holds no stored trajectories"):
        run(tmp_path)
    (kept / CONFIG).unlink()
    with pytest.raises(ConfigError, match=r"holds trajectories but no config\.yaml"):
        run(kept)


def test_a_wrong_config_is_one_error(kept: Path) -> None:
    class Wrong(Doors):
        async def reset(self, **_: Any) -> Any:
            raise ConfigError("no such corpus")

    this = sys.modules[__name__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(this, "Doors", Wrong)
        with pytest.raises(ConfigError, match="no such corpus"):
            run(kept)


def test_the_command(kept: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.json"
    command = ["reverify", str(kept), "env.kwargs.pays=ab"]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0
    new.write_text(CliRunner().invoke(app, [*command, "--json"]).stdout)
    for words in ("B - A", "changed", "heldout-0"):
        assert words in ran.stdout
    compared = CliRunner().invoke(app, ["compare", str(kept), str(new)])
    assert compared.exit_code == 0
    assert "tasks gained" in compared.stdout

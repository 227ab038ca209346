"""Spending more on a task: votes, verifiers, tournaments, notes and plans; what that costs.

Seen caught: the rarest answer; an empty one that votes; a score that is no number; too many that
leave a tournament; one order, or one seed, for all votes; votes for a place instead of who stood
there, or for place -1; votes on what has no result; PDR without its notes, with all, or submitting
of its first round; SAGE submitting its first attempt, or without its plan; what broke shown to the
verifier; other seeds than the evaluation's; questions that are not counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.evaluate import BudgetsSection, PricesSection, ScalingSection
from agentrl.config.load import load_config
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, BaseEnv, Info, Observation, Step
from agentrl.errors import ConfigError
from agentrl.evaluation.held_out import HeldOutEvaluation
from agentrl.evaluation.report import EvaluationReport
from agentrl.evaluation.scaling.attempt import ScalingAttempt, ScalingMethod
from agentrl.evaluation.scaling.methods import (
    BestOfN,
    MajorityVote,
    PdrMethod,
    RtvMethod,
    SageMethod,
    best_of,
    majority,
    method_of,
    usual_answer,
)
from agentrl.evaluation.scaling.notes import (
    note_question,
    parse_vote,
    plan_hint,
    plan_question,
    transcript,
)
from agentrl.evaluation.scaling.run import ScaledEvaluation, add_hint
from agentrl.evaluation.scaling.tournament import (
    TournamentResult,
    choose_winner,
    groups_of,
    rotate_group,
    tournament,
)
from agentrl.message import Message, ToolCall
from agentrl.policy import GenerateRequest, Sampling
from agentrl.rollout.episode import EpisodeLimits
from agentrl.rollout.runner import RolloutRunner
from agentrl.run.evaluate import evaluate
from agentrl.runtime.progress import SilentProgress
from agentrl.task import Split, Task
from agentrl.trajectory import Failed, Finished, Trajectory
from benchmarks.letters import END, LetterChat, ids, said

SAGE = ScalingSection(name="sage")


def test_what_most_say_is_taken() -> None:
    """Four A, three B, one C: specs 5.1's votes, by plain majority."""
    answers = ["B", "A", "C", "A", "B", "A", "B", "A"]
    assert majority(answers) == 1
    assert majority(["B", "A", "A", "B"]) == 0
    assert majority([None, "", "C", None]) == 2
    assert majority(["", None]) is None
    assert majority([]) is None


@pytest.mark.parametrize("text", ["12", " 12.", "12\n", "12 "])
def test_answers_are_counted_without_their_looks(text: str) -> None:
    assert usual_answer(text) == "12"
    assert usual_answer("The  Blue\ndoor.") == "the blue door"
    assert usual_answer("1.5") == "1.5"


def test_the_best_score_is_taken() -> None:
    assert best_of([0.1, 0.7, 0.7, None]) == 1
    assert best_of([None, -2.0, float("nan"), -1.0]) == 3
    assert best_of([None, float("nan")]) is None


def comparisons_of(contenders: int, *, size: int, keep: int) -> list[int]:
    """Return the number of comparisons in each round."""
    rounds: list[int] = []
    while contenders > keep:
        groups, byes = groups_of(range(contenders), size=size, keep=keep)
        rounds.append(len(groups))
        contenders = len(groups) + len(byes)
    return rounds


def test_a_tournament_has_the_size_of_the_papers() -> None:
    """Specs 7.7: 16 notes in pairs, 8 votes each."""
    assert comparisons_of(16, size=2, keep=1) == [8, 4, 2, 1]
    assert comparisons_of(16, size=2, keep=4) == [8, 4]
    assert 8 * sum(comparisons_of(16, size=2, keep=1)) == 120
    assert 8 * sum(comparisons_of(16, size=2, keep=4)) == 96
    assert comparisons_of(5, size=2, keep=1) == [2, 1, 1]
    assert comparisons_of(6, size=2, keep=4) == [2]
    assert comparisons_of(9, size=3, keep=1) == [3, 1]
    assert comparisons_of(4, size=2, keep=4) == []


def played(
    contenders: int,
    judge: Callable[[tuple[int, ...], int], int | None],
    has_result: Callable[[int], bool] = lambda one: True,
    **settings: int,
) -> TournamentResult:
    async def vote(order: tuple[int, ...], seed: int) -> int | None:
        return judge(order, seed)

    return asyncio.run(tournament(range(contenders), vote, has_result=has_result, **settings))


@given(
    contenders=st.integers(1, 20),
    size=st.integers(2, 5),
    keep=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_a_tournament_keeps_as_many_as_it_should(
    contenders: int, size: int, keep: int, seed: int
) -> None:
    found = played(
        contenders, lambda order, _: order.index(max(order)), size=size, keep=keep, seed=seed
    )
    assert len(set(found.survivors)) == len(found.survivors) == min(keep, contenders)
    rounds = Counter(one.round for one in found.comparisons)
    assert [rounds[n] for n in sorted(rounds)] == comparisons_of(contenders, size=size, keep=keep)
    for number in rounds:
        met = [c for one in found.comparisons if one.round == number for c in one.contenders]
        assert len(set(met)) == len(met)
    assert all(one.winner == max(one.contenders) for one in found.comparisons)
    assert max(range(contenders)) in found.survivors


def test_a_taste_for_a_place_cancels_out() -> None:
    """A judge that always takes the first shown gives each half of the votes."""
    orders = [rotate_group((7, 8), vote) for vote in range(8)]
    assert orders[:2] == [(7, 8), (8, 7)]
    assert Counter(order[0] for order in orders) == {7: 4, 8: 4}
    wins = Counter(
        played(2, lambda order, seed: 0, votes=8, seed=seed).survivors[0] for seed in range(400)
    )
    assert 140 < wins[0] < 260
    assert [rotate_group((1, 2, 3), vote)[0] for vote in range(4)] == [1, 2, 3, 1]


def test_who_meets_whom_is_drawn() -> None:
    """A fixed bracket would always let the same two meet first."""
    meetings = {
        played(4, lambda order, seed: 0, seed=s).comparisons[0].contenders for s in range(9)
    }
    assert len(meetings) > 3


def test_votes_are_counted() -> None:
    assert choose_winner([3, 5, 5], (3, 5)) == 5
    assert choose_winner([5, 3], (3, 5)) == 5
    assert choose_winner([], (3, 5)) == 3
    votes = iter([2, None, -1, 1, 1, 1, 0, 1])
    found = played(2, lambda order, _: next(votes), seed=0)
    assert len(found.comparisons[0].votes) == 5


def test_each_vote_has_a_seed_of_its_own() -> None:
    seeds: list[int] = []
    played(4, lambda order, seed: seeds.append(seed) or 0, votes=8)
    assert len(set(seeds)) == len(seeds) == 24


def test_who_has_no_result_loses_without_a_vote() -> None:
    asked: list[tuple[int, ...]] = []

    def judge(order: tuple[int, ...], seed: int) -> int:
        asked.append(order)
        return 0

    found = played(4, judge, has_result=lambda one: one == 2, seed=3)
    assert (found.survivors, asked) == ((2,), [])
    assert len(played(4, judge, has_result=lambda one: False).survivors) == 1
    played(4, judge, has_result=lambda one: one != 1)
    assert not any(1 in order for order in asked)


@given(st.integers(2, 6), st.data())
def test_no_bye_carries_who_has_no_result_past_others(contenders: int, data: st.DataObject) -> None:
    live = data.draw(st.sets(st.integers(0, contenders - 1)))
    keep = data.draw(st.integers(1, contenders))
    seed = data.draw(st.integers(0, 99))
    found = played(contenders, lambda order, _: 0, live.__contains__, keep=keep, seed=seed)
    assert len(live & {*found.survivors}) == min(keep, len(live))
    assert len(found.survivors) == keep


def test_a_judges_answer_names_a_place() -> None:
    assert [parse_vote(text, 2) for text in ("2", "Attempt 1.", "none", "7", "not 1 but 2")] == [
        1,
        0,
        None,
        None,
        1,
    ]


def test_a_long_attempt_loses_its_middle() -> None:
    messages = (
        Message("user", "first words"),
        Message("assistant", "x" * 500, tool_calls=(ToolCall("c", "look", {"at": 3}),)),
        Message("tool", "last words"),
    )
    whole = transcript(messages, limit_chars=10_000)
    assert "[calls look({'at': 3})]" in whole
    cut = transcript(messages, limit_chars=100)
    assert cut.startswith("[user]\nfirst words")
    assert cut.endswith("last words")
    assert f"{len(whole) - 100} characters left out" in cut
    assert "first words" in note_question(messages, limit_chars=100)


def test_a_hint_stands_behind_the_tasks_words() -> None:
    system, user = Message("system", "be good"), Message("user", ("look", " here"))
    assert add_hint((system, user), "psst") == (
        system,
        Message("user", ("look", " here", "\n\npsst")),
    )
    assert add_hint((user, Message("user", "b")), "psst")[1].text == "b\n\npsst"
    assert add_hint((system,), "psst") == (system, Message("user", "psst"))


TASK = Task(prompt="the task", id="t", answer="hidden")


def attempt(text: str, *, passes: bool = False, broke: bool = False) -> ScalingAttempt:
    trajectory = Trajectory(
        task=TASK,
        sample=0,
        outcome=Failed("env", "gone") if broke else Finished(float(passes)),
        token_ids=(),
        sources=(),
        turns=(),
        logprobs=(),
        versions=(),
        nodes=(),
    )
    return ScalingAttempt(
        trajectory=trajectory, messages=(Message("user", "trace"), Message("assistant", text))
    )


@dataclass
class Scripted:
    """An agent whose attempts are given, and which writes down what it is asked."""

    given: list[ScalingAttempt]
    task: Task = TASK
    hints: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    asked: list[str] = field(default_factory=list[str])
    judge: Any = None

    async def attempts(self, count: int, *, hint: str = "") -> list[ScalingAttempt]:
        self.hints.append((count, hint))
        taken, self.given = self.given[:count], self.given[count:]
        return taken

    async def ask(self, question: str, *, max_tokens: int, seed: int) -> str:
        self.asked.append(question)
        if "most likely to be right" in question:
            notes = [n for n in range(40) if f"note of a{n} " in question]
            order = sorted(notes, key=lambda n: question.index(f"note of a{n} "))
            return str(1 + order.index(max(notes)))
        for n in range(40):
            if f"answer a{n} " in question:
                return f"note of a{n} "
        return "plan ψ"


def numbered(count: int, start: int = 0) -> list[ScalingAttempt]:
    return [attempt(f"answer a{n} ") for n in range(start, start + count)]


def solve(method: ScalingMethod, agent: Scripted) -> Any:
    return asyncio.run(method.solve(agent, seed=1))


def test_majority_submits_an_attempt_that_did_not_break() -> None:
    texts = ["7", "9", "7.", "broken"]
    agent = Scripted([attempt(t, broke=t == "broken") for t in texts])
    found = solve(MajorityVote(samples=4), agent)
    assert found.chosen is found.attempts[0]
    assert found.notes == {"answers": ["7", "9", "7", ""], "chosen": 0}
    broken = Scripted([attempt("x", broke=True), attempt("")])
    assert not solve(MajorityVote(samples=2), broken).chosen.broke


def test_majority_counts_answers_as_it_is_told() -> None:
    agent = Scripted([attempt(t) for t in ("it is 4", "so 5", "hence 5")])
    found = solve(MajorityVote(samples=3, answer=lambda text: text[-1]), agent)
    assert found.chosen is found.attempts[1]


def test_the_verifier_sees_what_was_said_and_chooses() -> None:
    seen: list[tuple[str, str]] = []

    async def longest(task: Task, messages: Sequence[Message]) -> float:
        seen.append((task.id, messages[-1].text))
        return len(messages[-1].text)

    agent = Scripted([attempt("a"), attempt("ccc", broke=True), attempt("bb")])
    found = solve(BestOfN(verifier=longest, samples=3), agent)
    assert found.chosen.answer == "bb"
    assert seen == [("t", "a"), ("t", "bb")]
    unsure = solve(BestOfN(verifier=lambda task, messages: None, samples=2), Scripted(numbered(2)))
    assert unsure.chosen is unsure.attempts[0]


def test_rtv_asks_as_often_as_the_paper() -> None:
    agent = Scripted(numbered(16))
    found = solve(RtvMethod(section=ScalingSection(name="rtv")), agent)
    assert len(agent.asked) == 16 + 120
    assert found.chosen.answer == "answer a15 "
    votes = [q for q in agent.asked if "most likely" in q]
    assert len(votes) == 120
    assert not any("answer a" in question or "trace" in question for question in votes)
    assert not any("hidden" in question for question in agent.asked)
    assert all("the task" in question for question in votes)
    assert len(found.notes["comparisons"]) == 15


def test_rtv_has_no_note_of_what_broke() -> None:
    agent = Scripted([attempt("answer a0 "), attempt("answer a9 ", broke=True)])
    found = solve(RtvMethod(section=ScalingSection(name="rtv", samples=2)), agent)
    assert found.chosen.answer == "answer a0 "
    assert found.notes["notes"] == ["note of a0 ", "no result"]
    assert len(agent.asked) == 1


def test_pdr_shows_the_best_notes_to_fresh_attempts() -> None:
    agent = Scripted([*numbered(16), *numbered(16, 16)])
    found = solve(PdrMethod(section=ScalingSection(name="pdr")), agent)
    (first, nothing), (second, hint) = agent.hints
    assert (first, nothing, second) == (16, "", 16)
    read = [n for n in range(16) if f"note of a{n} " in hint]
    assert len(read) == 4
    assert 15 in read
    assert "answer a" not in hint
    assert "trace" not in hint
    assert len(agent.asked) == 16 + 96 + 16 + 120
    assert found.chosen.answer == "answer a31 "
    assert len(found.attempts) == 32


def test_pdr_without_a_note_says_nothing() -> None:
    broken = [attempt("x", broke=True) for _ in range(2)]
    agent = Scripted([*broken, *numbered(2)])
    solve(PdrMethod(section=ScalingSection(name="pdr", samples=2, keep=1, votes=1)), agent)
    assert agent.hints == [(2, ""), (2, "")]


def test_sage_plans_once_and_submits_the_second() -> None:
    agent = Scripted(numbered(2))
    found = solve(SageMethod(section=SAGE), agent)
    (first, nothing), (second, hint) = agent.hints
    assert (first, nothing, second) == (1, "", 1)
    assert "plan ψ" not in agent.asked[0]
    assert "trace" in agent.asked[0]
    assert "note of a0" in hint
    assert "trace" not in hint
    assert len(agent.asked) == 1
    assert found.chosen is found.attempts[1]
    checked = Scripted(numbered(2))
    first_one = solve(SageMethod(section=SAGE, check=lambda task, messages: True), checked)
    assert first_one.chosen is first_one.attempts[0]
    assert (len(checked.hints), checked.asked) == (1, [])
    denied = solve(
        SageMethod(section=SAGE, check=lambda task, messages: False), Scripted(numbered(2))
    )
    assert denied.chosen is denied.attempts[1]
    broken = Scripted([attempt("x", broke=True), *numbered(1)])
    solve(SageMethod(section=SAGE, check=lambda task, messages: True), broken)
    assert (broken.hints, broken.asked) == ([(1, ""), (1, "")], [])


class Lock(BaseEnv):
    """One turn: `k` opens it, and a hint that says so makes the policy say it."""

    resets = 0

    def tasks(self, split: Split, *, seed: int = 0) -> Iterable[Task]:
        return [Task(prompt=f"task {n}", id=f"t{n}", split=split) for n in range(6)]

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        Lock.resets += 1
        assert options is not None
        return Observation(options["task"].messages, tools=()), {}

    async def step(self, action: Action) -> Step:
        return Observation(()), float(action.text == "k"), True, False, {}


def talk(request: GenerateRequest) -> Sequence[int]:
    """Answer `k` or `no`; after a plan always `k`."""
    asked = said(request.prompt)
    if "Plan:" in asked:
        return (*ids("say k"), END)
    if "most likely to be right" in asked:
        return (*ids("1"), END)
    if "Report:" in asked:
        return (*ids("it said k" if "]\nk" in asked else "it said no"), END)
    if "say k" in asked:
        return (*ids("k"), END)
    return (*ids(("no", "k")[request.seed % 2]), END)


def scaled(method: ScalingMethod, name: str, **settings: Any) -> EvaluationReport:
    return asyncio.run(
        ScaledEvaluation(
            evaluation=HeldOutEvaluation(
                tasks=tuple(Lock().tasks("heldout")),
                samples_per_task=1,
                k=(1,),
                threshold=1.0,
                confidence=0.95,
                sampling=Sampling(),
                seed=5,
                budgets=BudgetsSection(
                    prices=PricesSection(prompt_per_million=1e6, sampled_per_million=1e6)
                ),
            ),
            method=method,
            name=name,
            tasks_at_once=2,
        ).run(rollouts(**settings), SilentProgress())
    )


def rollouts(reply: Any = talk, context: int = 4000) -> RolloutRunner:
    return RolloutRunner(
        make_env=Lock,
        engine=ScriptedEngine(reply),
        chat=LetterChat(between="\n"),
        concurrency=4,
        retries=1,
        limits=EpisodeLimits(context_tokens=context, max_turn_tokens=50),
    )


def prompts(first: str) -> int:
    """Return the tokens of what SAGE asks: an attempt, a plan after it, an attempt with that."""
    said_first = (Message("user", "task 0"), Message("assistant", first))
    question = plan_question(said_first, limit_chars=12_000)
    return sum(len(text) + 1 for text in ("task 0", question, f"task 0\n\n{plan_hint('say k')}"))


def test_sage_costs_both_attempts_and_the_plan() -> None:
    Lock.resets = 0
    report = scaled(SageMethod(section=SAGE), "sage")
    assert Lock.resets == 12
    assert report.overall.pass_at[1].mean == 1.0
    figures = report.scaled
    assert figures is not None
    assert figures.plain is not None
    assert figures.gain is not None
    assert 0 < figures.plain.mean < 1
    assert figures.gain.mean == pytest.approx(1 - figures.plain.mean)
    first = figures.plain.mean * len("k.") + (1 - figures.plain.mean) * len("no.")
    plan, second = len("say k."), len("k.")
    assert figures.costs["tokens per task"] == pytest.approx(first + plan + second)
    assert figures.costs["of which notes, votes, and plans"] == plan
    assert figures.costs["relative to one attempt"] == pytest.approx(
        (first + plan + second) / first
    )
    # Each token costs one: those of the three contexts, and what was sampled.
    right, wrong = (prompts("k") + 2, prompts("no") + 3)
    sampled = figures.plain.mean * right + (1 - figures.plain.mean) * wrong + plan + second
    assert figures.costs["cost per task"] == pytest.approx(sampled)
    assert figures.to_json()["tasks"][0] == {"task": "t0", "plan": "say k"}


def test_the_first_attempts_are_the_evaluations_own() -> None:
    """Scaling begins with the trajectories that the plain evaluation plays."""
    report = scaled(MajorityVote(samples=3), "majority")
    plain = asyncio.run(
        HeldOutEvaluation(
            tasks=tuple(Lock().tasks("heldout")),
            samples_per_task=3,
            k=(1,),
            threshold=1.0,
            confidence=0.95,
            sampling=Sampling(),
            seed=5,
        ).run(rollouts(), SilentProgress())
    )
    assert report.scaled is not None
    assert report.scaled.plain == plain.overall.pass_at[1]
    by_task: dict[str, list[float]] = {}
    for sample in plain.samples:
        by_task.setdefault(sample.task, []).append(sample.reward or 0.0)
    won_by = {task: float(sum(own) >= 2) for task, own in by_task.items()}
    assert {one.task: one.reward for one in report.samples} == won_by
    assert report.about["scaling"] == "majority"
    assert len(report.samples) == 6


def test_a_report_shows_what_scaling_gained() -> None:
    report = scaled(RtvMethod(section=ScalingSection(name="rtv", samples=4)), "rtv")
    rows = {row[0]: row for row in report.rows()}
    assert {
        "one attempt: pass@1",
        "gain",
        "tokens per task",
        "relative to one attempt",
    } <= rows.keys()
    assert report.to_json()["scaling"]["costs"]["attempts per task"] == 4


def test_a_question_that_breaks_fails_its_task() -> None:
    def breaks(request: GenerateRequest) -> Sequence[int]:
        if "Plan:" in said(request.prompt) and "task 1" in said(request.prompt):
            raise RuntimeError("no answer")
        return talk(request)

    report = scaled(SageMethod(section=SAGE), "sage", reply=breaks)
    assert report.overall.outcomes == {"failed_engine": 1, "finished": 5}
    assert report.scaled is not None
    assert report.scaled.gain is not None
    assert (report.scaled.gain.tasks, report.overall.pass_at[1].mean) == (5, 1.0)


def test_a_question_without_room_is_a_wrong_config() -> None:
    with pytest.raises(ConfigError, match=r"raise it, or lower evaluate\.scaling\."):
        scaled(SageMethod(section=SAGE), "sage", context=100)


def longest(task: Task, messages: Sequence[Message]) -> float:
    return len(messages[-1].text)


@pytest.mark.parametrize("name", ["majority", "best_of", "rtv", "pdr", "sage"])
def test_a_config_names_a_method(name: Any) -> None:
    section = ScalingSection(
        name=name, samples=3, keep=2, votes=5, group=3, verifier=f"{__name__}:longest"
    )
    assert (
        method_of(section)
        == {
            "majority": MajorityVote(samples=3),
            "best_of": BestOfN(verifier=longest, samples=3),
            "rtv": RtvMethod(section=section),
            "pdr": PdrMethod(section=section),
            "sage": SageMethod(section=section),
        }[name]
        or name == "best_of"
    )


CONFIG = f'env: {{id: "{__name__}:Lock"}}\npolicy: {{path: nowhere}}\n'


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        ("{name: best_of}", "evaluate.scaling.verifier, which ranks"),
        ("{name: pdr, samples: 3}", "there are only as many notes as samples"),
    ],
)
def test_a_method_without_what_it_needs_is_refused(tmp_path: Path, scaling: str, says: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{CONFIG}evaluate: {{scaling: {scaling}}}\n")
    with pytest.raises(ConfigError, match=says):
        load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ("samples_per_task: 2", "evaluate.samples_per_task"),
        ("until: {half_width: 0.1}", "evaluate.until"),
        ("budget: {each: {turns: 3}}", "evaluate.budget.each"),
        ("budget: {total: {tokens: 3}}", "evaluate.budget.total"),
    ],
)
def test_what_scaling_cannot_be_combined_with_is_refused(
    tmp_path: Path, keys: str, names: str
) -> None:
    (tmp_path / "a.yaml").write_text(f"{CONFIG}evaluate: {{scaling: {{name: sage}}, {keys}}}\n")
    with pytest.raises(ConfigError, match=f"cannot be combined with {names};"):
        evaluate(tmp_path / "a.yaml")

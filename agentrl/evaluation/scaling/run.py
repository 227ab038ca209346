"""An evaluation in which a method decides what is submitted for each task."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from agentrl.env import Action, Env, Info, Observation, Step
from agentrl.errors import ConfigError, EngineError, RolloutError, blame
from agentrl.evaluation.bounded_gather import gather_bounded
from agentrl.evaluation.budget import compute_cost
from agentrl.evaluation.held_out import HeldOutEvaluation
from agentrl.evaluation.report import EvaluationReport
from agentrl.evaluation.scaling.attempt import ScalingAttempt, ScalingMethod, ScalingResult
from agentrl.evaluation.scaling.figures import TaskSolution, build_scaling
from agentrl.message import Message
from agentrl.policy import Completion, GenerateRequest, Sampling
from agentrl.rollout.env_wrapper import EnvWrapper
from agentrl.rollout.runner import RolloutRunner
from agentrl.runtime.progress import RunProgress
from agentrl.runtime.seeds import derive
from agentrl.task import Task
from agentrl.trajectory import Failed, Tree, reward_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledEvaluation:
    """Held-out tasks, and a method that spends more than one attempt on each."""

    evaluation: HeldOutEvaluation
    """Its tasks, seeds and rules; the first attempts are those it would play itself."""
    method: ScalingMethod
    name: str
    tasks_at_once: int = 1

    async def run(self, rollouts: RolloutRunner, progress: RunProgress) -> EvaluationReport:
        """Solve every task; one whose method breaks, because a question did, has failed."""
        evaluation = self.evaluation
        rollouts = replace(rollouts, entropies=False)
        asking = asyncio.Semaphore(rollouts.concurrency)
        rewards: list[float] = []

        async def solve(task: Task) -> TaskSolution:
            agent = PolicyAgent(task, rollouts, evaluation, asking)
            solution = await self._solve_task(agent)
            reward = reward_of(solution.solved.chosen.trajectory.outcome)
            rewards.extend([] if reward is None else [reward])
            bar.advance(1, {"reward": fmean(rewards)} if rewards else {})
            return solution

        with progress.phase(f"evaluate by {self.name}", total=len(evaluation.tasks)) as bar:
            solutions = await gather_bounded(solve, evaluation.tasks, limit=self.tasks_at_once)
        report = evaluation.report(
            [replace(one.solved.chosen.trajectory, sample=0) for one in solutions],
            k=(1,),
            about={"scaling": self.name},
        )
        return replace(report, scaled=build_scaling(self.name, solutions, report.rules))

    async def _solve_task(self, agent: "PolicyAgent") -> TaskSolution:
        seed = derive(self.evaluation.seed, agent.task.id, self.name)
        try:
            solved = await self.method.solve(agent, seed=seed)
        except RolloutError as error:
            if not agent.attempted:
                raise
            first = agent.attempted[0]
            broken = replace(first.trajectory, outcome=Failed(error.kind, str(error)))
            solved = ScalingResult(
                chosen=replace(first, trajectory=broken),
                attempts=tuple(agent.attempted),
                notes={"broke": str(error)},
            )
        return TaskSolution(
            solved=solved,
            plain=agent.plain,
            attempt_tokens=agent.attempt_tokens,
            asked_tokens=agent.asked_tokens,
            money=agent.money,
        )


Heard = dict[int, list[Message]]
"""Conversations by sample; one that is begun again replaces what was heard."""


class ListeningEnv(EnvWrapper):
    """Keeps what is said in `heard`, and shows `hint` behind the task's own words."""

    def __init__(self, inner: Env, heard: Heard, hint: str = "") -> None:
        super().__init__(inner)
        self.heard, self.hint = heard, hint
        self._said: list[Message] = []

    def around(self, inner: Env) -> "ListeningEnv":
        return ListeningEnv(inner, self.heard, self.hint)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode; the hint is no part of what is heard."""
        observation, info = await super().reset(seed=seed, options=options)
        self._said = self.heard[(options or {}).get("sample", 0)] = [*observation.messages]
        if self.hint:
            observation = replace(observation, messages=add_hint(observation.messages, self.hint))
        return observation, info

    async def step(self, action: Action) -> Step:
        answer = await super().step(action)
        self._said += (action.message, *answer[0].messages)
        return answer


def add_hint(messages: tuple[Message, ...], hint: str) -> tuple[Message, ...]:
    """Return messages with `hint` at the end of the user's last one; in one of its own without."""
    users = [at for at, message in enumerate(messages) if message.role == "user"]
    if not users:
        return (*messages, Message("user", hint))
    last = messages[users[-1]]
    content = last.content
    more = f"{content}\n\n{hint}" if isinstance(content, str) else (*content, f"\n\n{hint}")
    return (*messages[: users[-1]], replace(last, content=more), *messages[users[-1] + 1 :])


@dataclass(slots=True, eq=False)
class PolicyAgent:
    """The policy on one task; it is also who writes notes and votes."""

    task: Task
    rollouts: RolloutRunner
    evaluation: HeldOutEvaluation
    asking: asyncio.Semaphore
    """Bounds the questions of all tasks."""
    attempted: list[ScalingAttempt] = field(default_factory=list[ScalingAttempt])
    plain: int = 0
    attempt_tokens: int = 0
    asked_tokens: int = 0
    money: float = 0.0
    _rounds: int = 0

    async def attempts(self, count: int, *, hint: str = "") -> list[ScalingAttempt]:
        """Play the task `count` more times; the first round has the evaluation's own seeds."""
        transcripts: Heard = {}
        make_env = self.rollouts.make_env
        rollouts = replace(
            self.rollouts, make_env=lambda: ListeningEnv(make_env(), transcripts, hint)
        )
        seed = self.evaluation.seed
        (tree,) = await rollouts.collect(
            [self.task],
            group_size=count,
            seed=derive(seed, "round", self._rounds) if self._rounds else seed,
            sampling=self.evaluation.sampling,
        )
        found = [
            ScalingAttempt(trajectory=one, messages=tuple(transcripts.get(one.sample, ())))
            for one in tree.trajectories()
        ]
        self._count_tokens(tree)
        if not self._rounds:
            self.plain = len(found)
        self._rounds += 1
        self.attempted += found
        return found

    async def ask(self, question: str, *, max_tokens: int, seed: int) -> str:
        """Return the policy's answer; `ConfigError` for a question that fills the context."""
        chat, most = self.rollouts.chat, self.rollouts.limits.context_tokens
        segments = chat.opening([Message("user", question)], ())
        prompt = tuple(token for segment in segments for token in segment.token_ids)
        room = most - len(prompt)
        if room <= 0:
            raise ConfigError(
                f"a question about task {self.task.id} has {len(prompt)} tokens, but "
                f"engine.context_tokens is {most}; raise it, or lower "
                "evaluate.scaling.transcript_chars or evaluate.scaling.note_tokens"
            )
        request = GenerateRequest(
            id=f"{self.task.id}/{seed}/asked",
            prompt=prompt,
            max_new_tokens=min(max_tokens, room),
            sampling=Sampling(temperature=self.evaluation.sampling.temperature),
            stop_token_ids=chat.stop_token_ids,
            seed=seed,
        )
        completion = await self._answer(request)
        sampled = len(completion.token_ids)
        self.asked_tokens += sampled
        self._add_cost(len(prompt), sampled)
        return chat.parse(completion.token_ids).text

    async def _answer(self, request: GenerateRequest) -> Completion:
        retries = self.rollouts.retries
        while True:
            try:
                async with self.asking:
                    with blame(EngineError, f"a question about task {self.task.id}"):
                        async with asyncio.timeout(self.rollouts.limits.turn_s):
                            return await self.rollouts.engine.generate(request)
            except EngineError:
                if retries == 0:
                    raise
                retries -= 1

    def _count_tokens(self, tree: Tree) -> None:
        """Count what was sampled, of attempts that broke too."""
        for leaf in tree.leaves:
            context = 0
            for node in () if leaf.node is None else tree.path(leaf.node):
                if node.source == "sampled":
                    sampled = len(node.token_ids)
                    self.attempt_tokens += sampled
                    self._add_cost(context, sampled)
                context += len(node.token_ids)

    def _add_cost(self, prompt: int, sampled: int) -> None:
        prices = self.evaluation.budgets.prices
        self.money += compute_cost(prices, prompt_tokens=prompt, sampled_tokens=sampled)

"""Time of an epoch whose tasks were played before: n-gram drafts, SPEC-RL's drafts, both, neither.

Groups of four requests with one prompt are sampled once. Then the weights change a little (each by
a random 0.3 %, `--change`), and the same prompts are sampled again with other noise: that is
measured. All four sample exactly the new policy's distribution: SPEC-RL's drafts are those of
`rollout.drafts={leniency: 1, residual: true}`, which accept a token of the first epoch with
probability min(1, p / q); n-gram drafts (`engine.draft_tokens: 8`) change no token.

Prompts are random tokens, so the text repeats little and is hard to guess: the worst case of
drafts. Without `--model FOLDER` it is a random model; the ratio says what drafts cost there.

Real agents are measured with what a run left: `agentrl export RUN --tokens` has the conversations,
whose turns are asked for once more, each after what came before it; `--model` and `--then` are two
checkpoints of it, for the first epoch and the second.

    python -m benchmarks.drafts --export FOLDER --model RUN/checkpoints/step-000004 \
        --then RUN/checkpoints/step-000008
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from agentrl.engine.local import LocalEngine
from agentrl.engine.weights import Weights
from agentrl.export.episode import TrajectoryTokens
from agentrl.export.row import read_jsonl
from agentrl.policy import GenerateRequest
from agentrl.rollout.drafts.draft import DraftedTurn, DraftTrajectory
from agentrl.rollout.drafts.engine import DraftingEngine, DraftReuseSettings
from agentrl.rollout.drafts.verify import AcceptanceRule
from benchmarks.engines import jobs, workload_of
from benchmarks.harness import Benchmark, Contender, Run, parser, positive
from benchmarks.samplers import Job, Workload

SLOTS = 16
GROUP = 4
DRAFT_TOKENS = 8
EXACT = DraftReuseSettings(rule=AcceptanceRule(leniency=1), residual=True)


@dataclass(slots=True)
class Player:
    """Plays epochs of the same requests. Owned by one contender."""

    engine: LocalEngine
    jobs: Sequence[Job]
    reuses: bool
    """True to give each request its last completion as a draft, as SPEC-RL does."""
    epoch: int = 0
    drafts: dict[int, DraftTrajectory] = field(default_factory=dict[int, DraftTrajectory])

    async def play(self) -> int:
        """Play one epoch; return the number of its tokens."""
        self.epoch += 1
        requests = [
            GenerateRequest(
                id=f"{self.epoch}/{index}",
                prompt=job.prompt,
                max_new_tokens=job.tokens,
                seed=self.epoch * len(self.jobs) + index,
            )
            for index, job in enumerate(self.jobs)
        ]
        if not self.reuses:
            done = await asyncio.gather(*map(self.engine.generate, requests))
            return sum(len(completion.token_ids) for completion in done)
        return sum(await asyncio.gather(*map(self._reuse, range(len(requests)), requests)))

    async def _reuse(self, index: int, request: GenerateRequest) -> int:
        drafting = DraftingEngine(
            engine=self.engine,
            chat=cast("Any", None),  # read where a cut is moved, which an exact one never is
            reusing=EXACT,
            draft=self.drafts.get(index),
            seed=request.seed,
        )
        turn = DraftedTurn(start=len(request.prompt), token_ids=(), logprobs=(), versions=())
        while len(turn.token_ids) < request.max_new_tokens:
            rest = replace(
                request,
                prompt=request.prompt + turn.token_ids,
                max_new_tokens=request.max_new_tokens - len(turn.token_ids),
            )
            completion = await drafting.generate(rest)
            turn = replace(
                turn,
                token_ids=turn.token_ids + completion.token_ids,
                logprobs=turn.logprobs + completion.logprobs,
                versions=turn.versions + completion.versions,
            )
        turn = replace(turn, alternatives=tuple(row for _, row in sorted(drafting.known.items())))
        self.drafts[index] = DraftTrajectory(
            token_ids=request.prompt + turn.token_ids, turns=(turn,)
        )
        return len(turn.token_ids)


def turns_of(tokens: TrajectoryTokens) -> Iterator[Job]:
    """Yield a request for each turn of a trajectory: what came before it, and its length."""
    if tokens.jumps:
        return  # a conversation that goes on elsewhere
    start = 0
    for source, run in groupby(tokens.sources):
        length = len(tuple(run))
        if source == "sampled":
            yield Job(tokens.ids[:start], length)
        start += length


def jobs_of(export: Path, count: int) -> list[Job]:
    """Return the first turns of exported trajectories."""
    told = (episode.tokens for episode in read_jsonl(export))
    found = list(islice((job for tokens in told if tokens for job in turns_of(tokens)), count))
    if not found:
        raise SystemExit(f"{export} has no tokens; make it with agentrl export RUN --tokens")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """What is asked for twice, and how the weights change in between."""

    workload: Workload
    count: int
    export: Path | None
    then: Path | None
    """Weights of the second epoch; None for a random change."""
    change: float

    def list_jobs(self) -> Sequence[Job]:
        """Return the requests of an epoch."""
        if self.export is None:
            return jobs(self.workload, self.count)
        return jobs_of(self.export, self.count)

    def change_weights(self, model: PreTrainedModel) -> Weights:
        """Return the weights of the second epoch."""
        if self.then is not None:
            return self.then
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + self.change * torch.randn_like(parameter))
        return model.state_dict()


def set_up(epochs: Epochs, *, ngrams: bool, reuses: bool) -> Run:
    """Play the first epoch and change the weights; the work is the tokens of the next one."""
    torch.set_num_threads(1)
    model, asked = epochs.workload.policy(), epochs.list_jobs()
    engine = LocalEngine(
        model,
        slots=SLOTS,
        context_tokens=max(len(job.prompt) + job.tokens for job in asked),
        draft_tokens=DRAFT_TOKENS if ngrams else 0,
        threads=1,
    )
    player, runner = Player(engine, asked, reuses), asyncio.Runner()
    runner.run(player.play())
    runner.run(engine.load(epochs.change_weights(model), 1))
    return lambda: float(runner.run(player.play()))


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument("--model", metavar="FOLDER", help="a Llama-like model")
    options.add_argument("--requests", type=positive, default=32, help="of an epoch (default 32)")
    options.add_argument("--mean", type=positive, default=32, help="tokens of one (default 32)")
    options.add_argument("--longest", type=positive, default=96, help="of them (default 96)")
    options.add_argument("--change", type=float, default=0.003, help="of weights (default 0.003)")
    options.add_argument("--then", type=Path, metavar="FOLDER", help="weights, in its place")
    options.add_argument("--export", type=Path, metavar="FOLDER", help="turns to ask for")
    given = options.parse_args()
    bench = Benchmark.from_arguments("drafts", given)
    workload = workload_of(given.model, bench.quick, mean=given.mean, longest=given.longest)
    epochs = Epochs(
        workload=replace(workload, group_size=GROUP, prompt_tokens=96),
        count=given.requests,
        export=given.export,
        then=given.then,
        change=given.change,
    )
    ways = {
        "off": (False, False),
        "n-grams": (True, False),
        "SPEC-RL": (False, True),
        "SPEC-RL and n-grams": (True, True),
    }
    runs = bench.compare(
        {
            name: Contender(
                set_up=partial(set_up, epochs, ngrams=ngrams, reuses=reuses),
                own_process=True,
                environ={"OMP_NUM_THREADS": "1"},
                timeout_s=1200.0,
            )
            for name, (ngrams, reuses) in ways.items()
        }
    )
    for name, measured in runs.items():
        bench.rate(f"second epoch, {name}", measured, unit="tokens")
    for name in list(ways)[1:]:
        bench.ratio(f"second epoch, {name} to off", runs[name], runs["off"], peer="no drafts")
    bench.finish()


if __name__ == "__main__":
    main()

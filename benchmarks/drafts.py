"""Time of an epoch whose tasks were played before: n-gram drafts, SPEC-RL's drafts, both, neither.

Groups of four requests with one prompt are sampled once. Then the weights change a little (each by
a random 0.3 %, `--change`), and the same prompts are sampled again with other noise: that is
measured. All four sample exactly the new policy's distribution: SPEC-RL's drafts are those of
`rollout.drafts={leniency: 1, residual: true}`, which accept a token of the first epoch with
probability min(1, p / q); n-gram drafts (`engine.draft_tokens: 8`) change no token.

Prompts are random tokens, so the text repeats little and is hard to guess: the worst case of
drafts. Without `--model FOLDER` it is a random model; the ratio says what drafts cost there.
"""

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch

from agentrl.engine.local import LocalEngine
from agentrl.policy import GenerateRequest
from agentrl.rollout.drafts.draft import DraftedTurn, DraftTrajectory
from agentrl.rollout.drafts.engine import DraftingEngine, DraftReuseSettings
from agentrl.rollout.drafts.verify import AcceptanceRule
from benchmarks.engines import jobs, workload_of
from benchmarks.harness import Benchmark, Contender, Run, parser, positive
from benchmarks.samplers import Workload

SLOTS = 16
GROUP = 4
DRAFT_TOKENS = 8
EXACT = DraftReuseSettings(rule=AcceptanceRule(leniency=1), residual=True)


@dataclass(slots=True)
class Player:
    """Plays epochs of the same requests. Owned by one contender."""

    engine: LocalEngine
    workload: Workload
    count: int
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
                seed=self.epoch * self.count + index,
            )
            for index, job in enumerate(jobs(self.workload, self.count))
        ]
        if not self.reuses:
            done = await asyncio.gather(*map(self.engine.generate, requests))
            return sum(len(completion.token_ids) for completion in done)
        return sum(await asyncio.gather(*map(self._reuse, range(self.count), requests)))

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


def set_up(workload: Workload, count: int, change: float, *, ngrams: bool, reuses: bool) -> Run:
    """Play the first epoch and change the weights; the work is the tokens of the next one."""
    torch.set_num_threads(1)
    model = workload.policy()
    engine = LocalEngine(
        model,
        slots=SLOTS,
        context_tokens=workload.context_tokens,
        draft_tokens=DRAFT_TOKENS if ngrams else 0,
        threads=1,
    )
    player, runner = Player(engine, workload, count, reuses), asyncio.Runner()
    runner.run(player.play())
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + change * torch.randn_like(parameter))
    runner.run(engine.load(model.state_dict(), 1))
    return lambda: float(runner.run(player.play()))


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument("--model", metavar="FOLDER", help="a Llama-like model")
    options.add_argument("--requests", type=positive, default=32, help="of an epoch (default 32)")
    options.add_argument("--mean", type=positive, default=32, help="tokens of one (default 32)")
    options.add_argument("--longest", type=positive, default=96, help="of them (default 96)")
    options.add_argument("--change", type=float, default=0.003, help="of weights (default 0.003)")
    given = options.parse_args()
    bench = Benchmark.from_arguments("drafts", given)
    workload = workload_of(given.model, bench.quick, mean=given.mean, longest=given.longest)
    workload = replace(workload, group_size=GROUP, prompt_tokens=96)
    ways = {
        "off": (False, False),
        "n-grams": (True, False),
        "SPEC-RL": (False, True),
        "SPEC-RL and n-grams": (True, True),
    }
    runs = bench.compare(
        {
            name: Contender(
                set_up=partial(
                    set_up, workload, given.requests, given.change, ngrams=ngrams, reuses=reuses
                ),
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

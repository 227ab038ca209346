"""Sampling engines: tokens per second, time to the first token, and how long new weights take.

The model is a random 4.2 M Qwen3 (vocabulary 4096, float32), temperature 1, one thread each. Of
every contender, in turns with the others:

- *gen32*, *gen96*: so many requests with a long tail of lengths (lognormal, mean 128, sigma 1.2, at
  most 1024) after prompts of 64 tokens; 32 decode at once. gen32 is one static batch's worth, the
  case `model.generate` can run; gen96 keeps the 32 places filled for longer. Lengths are fixed
  beforehand and nothing stops early, so every contender samples the same number of useful tokens;
  what a static batch computes beyond a row's length is not useful.
- *first token*: one token after a prompt of 512 that nobody has seen, asked alone: from the call to
  the answer.
- *new weights*: from a state dict in the trainer's process to the answer with the first token under
  it, after a prompt of 64.

vLLM and `ours, own process` answer from a process of their own, over a socket, and get weights
through shared memory: what they cost includes that. `ours` is the engine in the process that asks,
as transformers' two are. Continuous batching has no call for new weights, so it is stopped, given
them, and started. Every contender returns log-probs except `generate`, which is spared it.

Before the first run of a contender is timed, its log-probs under the first weights and under the
second are compared with a plain forward pass; a difference beyond 1e-4 of ours ends the benchmark.
vLLM is that of `--vllm-python`; without one its rows are missing, and a note says so.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from benchmarks import samplers
from benchmarks.harness import Benchmark, Contender, Measurement, Run, parser
from benchmarks.samplers import (
    LONGEST,
    PROMPT_TOKENS,
    SLOTS,
    VOCABULARY,
    Job,
    Kind,
    Sampled,
    Sampler,
    policy,
    sampler,
)

TOLERANCE_NATS = 1e-4
LONG_PROMPT_TOKENS = 512
REPEATS = 8
"""First tokens, and loads, of one run."""
VLLM_PYTHON = Path(".bench/vllm/bin/python")
THREADS = {"OMP_NUM_THREADS": "1"}


def jobs(count: int, longest: int = LONGEST) -> list[Job]:
    """Return the first requests of the workload."""
    rng = np.random.default_rng(0)
    sigma = 1.2
    lengths = rng.lognormal(np.log(128) - sigma**2 / 2, sigma, count)
    prompts = rng.integers(0, VOCABULARY, (count, PROMPT_TOKENS))
    # The tail is what the workload is about, so however few are drawn, one is of the longest.
    lengths[0] = longest
    return [
        Job(tuple(prompt), int(length))
        for prompt, length in zip(prompts.tolist(), np.clip(lengths, 1, longest), strict=True)
    ]


def singles(count: int, prompt_tokens: int) -> list[Job]:
    """Return requests for one token each, after prompts that are in no other workload."""
    prompts = np.random.default_rng(1).integers(0, VOCABULARY, (count, prompt_tokens))
    return [Job(tuple(prompt), 1) for prompt in prompts.tolist()]


def set_up_work(kind: Kind, folder: Path, python: str, *, count: int, longest: int) -> Run:
    """Get ready to sample the first `count` requests; the work is the useful tokens."""
    made = sampler(kind, folder, python)
    if kind != "generate" and not gap_file(folder, kind).exists():
        check_exactness(made, kind, folder)
    made.sample(jobs(SLOTS, longest=8))
    work = jobs(count, longest)

    def run() -> float:
        return sum(len(reply.tokens) for reply in made.sample(work))

    return run


def set_up_first_token(kind: Kind, folder: Path, python: str) -> Run:
    """Get ready to ask for first tokens, one after the other."""
    made = sampler(kind, folder, python)
    warm, *work = singles(REPEATS + 1, LONG_PROMPT_TOKENS)
    made.sample([warm])

    def run() -> float:
        return sum(len(made.sample([job])) for job in work)

    return run


def set_up_new_weights(kind: Kind, folder: Path, python: str) -> Run:
    """Get ready to load two policies in turn, each with a first token after it."""
    made = sampler(kind, folder, python)
    weights = [policy(seed).state_dict() for seed in (1, 2)]
    warm, *work = singles(REPEATS + 1, PROMPT_TOKENS)
    made.load(weights[1])
    made.sample([warm])

    def run() -> float:
        for number, job in enumerate(work):
            made.load(weights[number % 2])
            made.sample([job])
        return len(work)

    return run


def worst_gap_nats(model: Any, work: Sequence[Job], replies: Sequence[Sampled]) -> float:
    """Return the largest difference between reported log-probs and a plain forward pass."""
    worst = 0.0
    for job, reply in zip(work, replies, strict=True):
        ids = torch.tensor([job.prompt + reply.tokens])
        with torch.inference_mode():
            logprobs = model(ids).logits[0, len(job.prompt) - 1 : -1].float().log_softmax(-1)
        want = logprobs.gather(-1, torch.tensor(reply.tokens).unsqueeze(-1)).squeeze(-1)
        worst = max(worst, float((want - torch.tensor(reply.logprobs)).abs().max()))
    return worst


def gap_file(folder: Path, kind: Kind) -> Path:
    """Return the file in which a contender leaves how exact it is."""
    return folder / f"{kind}.gap"


def check_exactness(made: Sampler, kind: Kind, folder: Path) -> None:
    """Write down how exact log-probs are, also after a load; `SystemExit` where ours are not."""
    work, models = jobs(SLOTS, longest=100), [policy(), policy(1)]
    gap = worst_gap_nats(models[0], work, made.sample(work))
    made.load(models[1].state_dict())
    gap = max(gap, worst_gap_nats(models[1], work, made.sample(work)))
    made.load(models[0].state_dict())
    gap_file(folder, kind).write_text(str(gap))
    if gap > TOLERANCE_NATS and kind.startswith("ours"):
        raise SystemExit(f"log-probs differ by {gap} nats; speed is not measured")


def contenders(
    kinds: Sequence[Kind], folder: Path, python: str, quick: bool
) -> dict[str, Contender]:
    """Return who is measured, each in a process of its own."""
    longest = 100 if quick else LONGEST
    made: dict[str, Any] = {}
    for kind in kinds:
        count = 32 if kind == "generate" else 96
        given = (kind, folder, python)
        made[f"gen{count}, {kind}"] = partial(set_up_work, *given, count=count, longest=longest)
        made[f"first token, {kind}"] = partial(set_up_first_token, *given)
        made[f"new weights, {kind}"] = partial(set_up_new_weights, *given)
    made["gen32, ours"] = partial(set_up_work, "ours", folder, python, count=32, longest=longest)
    return {
        name: Contender(set_up=set_up, own_process=True, environ=THREADS)
        for name, set_up in made.items()
    }


def state(bench: Benchmark, runs: dict[str, list[Measurement]]) -> None:
    """State the rows, each by the clock and by the CPU, which a busy neighbour disturbs less."""
    for name, measured in runs.items():
        if name.startswith("gen"):
            bench.rate(name, measured, unit="tokens")
            bench.rate(f"{name}, by the clock", measured, unit="tokens", by="wall")
        else:
            bench.cost(name, measured, unit="ms", by="wall")
            bench.cost(f"{name}, CPU", measured, unit="ms")
    ours, served = runs["gen96, ours"], runs["gen96, ours, own process"]
    bench.ratio(
        "gen96, ours to continuous batching",
        ours,
        runs["gen96, continuous batching"],
        peer="transformers continuous batching",
        goal=2.5,
    )
    bench.ratio(
        "gen32, ours to generate",
        runs["gen32, ours"],
        runs["gen32, generate"],
        peer="model.generate, static batch of 32",
        goal=10,
    )
    if theirs := runs.get("gen96, vLLM"):
        bench.ratio("gen96, ours to vLLM", served, theirs, peer="vLLM, each in its own process")


def version_of(python: Path) -> str | None:
    """Return the version of the vLLM that an interpreter has; None where it has none."""
    # The CPU build is a distribution of another name.
    program = (
        "from importlib import metadata as m\n"
        "print(m.version(m.packages_distributions()['vllm'][0]))"
    )
    command = [str(python), "-c", program]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument(
        "--vllm-python",
        type=Path,
        default=VLLM_PYTHON,
        metavar="FILE",
        help=f"interpreter that has vLLM (default {VLLM_PYTHON})",
    )
    given = options.parse_args()
    bench = Benchmark.from_arguments("engines", given)
    torch.set_num_threads(1)
    os.environ.update(THREADS)  # of engines that are started here; contenders have it anyway
    kinds: list[Kind] = [*get_args(Kind)]
    if (version := version_of(given.vllm_python)) is None:
        kinds.remove("vLLM")
        bench.notes.append(
            f"vLLM is not measured: {given.vllm_python} is no interpreter that has it; build one "
            "with `tests/peers.sh vllm`, or name one as --vllm-python"
        )
    else:
        bench.notes.append(f"vLLM is {version}")
    with tempfile.TemporaryDirectory(prefix="agentrl-engines-") as made:
        folder, python = Path(made), str(given.vllm_python)
        samplers.save_policy(folder)
        runs = bench.compare(contenders(kinds, folder, python, bench.quick))
        for kind in kinds:
            if kind != "generate":
                bench.row(
                    f"log-prob error, {kind}",
                    float(gap_file(folder, kind).read_text()),
                    unit="nats",
                    peer="full forward",
                    goal=TOLERANCE_NATS,
                    better="lower",
                )
        state(bench, runs)
    bench.finish()


if __name__ == "__main__":
    main()

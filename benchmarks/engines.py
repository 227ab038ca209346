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

`--model FOLDER` measures a model of that folder instead: the same requests with lengths of mean 16
(`--mean`) and at most 64 (`--longest`), after prompts of 300 tokens that eight requests share. A
round of SmolLM2-135M takes about six CPU minutes in float32. It has rows of gen32 and gen96 alone,
and two more: the share of our engine's time that its matrix products take alone (`roof.py`), and
the prompt tokens that it computed. With `--dtype bfloat16` everybody's weights and products are of
that type, and so are the products of the roof.

vLLM, llama.cpp and `ours, own process` answer from a process of their own, over a socket: what they
cost includes that. vLLM and ours get weights through shared memory; llama.cpp is started with
another file. `ours` is the engine in the process that asks, as transformers' two are. Continuous
batching has no call for new weights, so it is stopped, given them, and started. Every contender
returns log-probs except `generate`, which is spared it.

Before the first run of a contender is timed, its log-probs under the first weights and under the
second are compared with a plain forward pass of the same weights in float32. A difference of ours
beyond 1e-4 nats ends the benchmark. In bfloat16 rounding alone moves some tokens by tenths of nats,
so there the mean difference may be 1.5 times that of a plain forward pass in bfloat16 at most.
vLLM is that of `--vllm-python`, llama.cpp (with `--model` of a Llama, which is written as GGUF for
it) that of `--llama-server`; without one its rows are missing, and a note says so.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from transformers import AutoConfig

from benchmarks import samplers
from benchmarks.harness import Benchmark, Contender, Measurement, Run, parser, positive
from benchmarks.roof import ProductRoof, StepSizes, step_sizes
from benchmarks.samplers import SLOTS, Dtype, Job, Kind, Sampled, Sampler, Workload, sampler

TOLERANCE_NATS = 1e-4
"""Of the largest difference between log-probs and a forward pass, in float32."""
ROUNDING_TOLERANCE = 1.5
"""Of the mean difference from a forward pass in float32, relative to that of transformers' own pass
in bfloat16. By chance alone it is off by a tenth with 130 tokens."""
LONG_PROMPT_TOKENS = 512
REPEATS = 8
"""First tokens, and loads, of one run."""
TIMEOUT_S = 1200.0
VLLM_PYTHON = Path(".bench/vllm/bin/python")
THREADS = {"OMP_NUM_THREADS": "1"}


def jobs(workload: Workload, count: int) -> list[Job]:
    """Return the first requests of the workload."""
    rng = np.random.default_rng(0)
    sigma = 1.2
    lengths = rng.lognormal(np.log(workload.mean) - sigma**2 / 2, sigma, count)
    groups = -(-count // workload.group_size)
    prompts = rng.integers(0, workload.vocabulary, (groups, workload.prompt_tokens))
    # The tail is what the workload is about, so however few are drawn, one is of the longest.
    lengths[0] = workload.longest
    return [
        Job(tuple(prompt), int(length))
        for prompt, length in zip(
            prompts.repeat(workload.group_size, 0)[:count].tolist(),
            np.clip(lengths, 1, workload.longest),
            strict=True,
        )
    ]


def singles(workload: Workload, count: int, prompt_tokens: int) -> list[Job]:
    """Return requests for one token each, after prompts that are in no other workload."""
    prompts = np.random.default_rng(1).integers(0, workload.vocabulary, (count, prompt_tokens))
    return [Job(tuple(prompt), 1) for prompt in prompts.tolist()]


@dataclass(frozen=True, slots=True)
class Setting:
    """One contender: who samples, what, and where it leaves what else it has to say."""

    kind: Kind
    workload: Workload
    folder: Path
    program: str = ""
    """Interpreter that has vLLM, or llama.cpp's server, where it is one of these."""

    def open(self) -> Sampler:
        """Return the sampler."""
        return sampler(self.kind, self.workload, self.folder, self.program)


def set_up_work(setting: Setting, *, count: int) -> Run:
    """Get ready to sample the first `count` requests; the work is the useful tokens."""
    made, workload = setting.open(), setting.workload
    if setting.kind != "generate" and not gap_file(setting).exists():
        check_exactness(made, setting)
    made.sample(jobs(replace(workload, longest=8), SLOTS))
    work = jobs(workload, count)

    def run() -> float:
        with step_sizes() as sizes:
            tokens = sum(len(reply.tokens) for reply in made.sample(work))
        if setting.kind == "ours" and count == 96:
            load = [[*size, steps] for size, steps in sizes.items()]
            load_file(setting.folder).write_text(json.dumps(load))
        return tokens

    return run


def set_up_first_token(setting: Setting) -> Run:
    """Get ready to ask for first tokens, one after the other."""
    made = setting.open()
    warm, *work = singles(setting.workload, REPEATS + 1, LONG_PROMPT_TOKENS)
    made.sample([warm])

    def run() -> float:
        return sum(len(made.sample([job])) for job in work)

    return run


def set_up_new_weights(setting: Setting) -> Run:
    """Get ready to load two policies in turn, each with a first token after it."""
    made, workload = setting.open(), setting.workload
    weights = [workload.policy(seed).state_dict() for seed in (1, 2)]
    warm, *work = singles(workload, REPEATS + 1, workload.prompt_tokens)
    made.load(weights[1])
    made.sample([warm])

    def run() -> float:
        for number, job in enumerate(work):
            made.load(weights[number % 2])
            made.sample([job])
        return len(work)

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobGap:
    """How far log-probs are from a plain forward pass of the same weights in float32, in nats."""

    largest: float
    mean: float
    rounding: float
    """The mean of a plain forward pass in the workload's type; 0 in float32."""

    @property
    def is_exact(self) -> bool:
        """Return whether nothing but rounding shows."""
        if self.rounding:
            return self.mean <= ROUNDING_TOLERANCE * self.rounding
        return self.largest <= TOLERANCE_NATS


def score(model: Any, work: Sequence[Job], replies: Sequence[Sampled]) -> torch.Tensor:
    """Return the log-probs of all sampled tokens by a plain forward pass."""
    scores: list[torch.Tensor] = []
    for job, reply in zip(work, replies, strict=True):
        ids = torch.tensor([job.prompt + reply.tokens])
        with torch.inference_mode():
            logprobs = model(ids).logits[0, len(job.prompt) - 1 : -1].float().log_softmax(-1)
        scores.append(logprobs.gather(-1, torch.tensor(reply.tokens).unsqueeze(-1)).squeeze(-1))
    return torch.cat(scores)


def compare_logprobs(model: Any, work: Sequence[Job], replies: Sequence[Sampled]) -> LogprobGap:
    """Return how far reported log-probs are; the model is turned into float32."""
    reported = torch.tensor([logprob for reply in replies for logprob in reply.logprobs])
    is_rounded = model.dtype != torch.float32
    rounded = score(model, work, replies) if is_rounded else None
    exact = score(model.float(), work, replies)
    gaps = (reported - exact).abs()[~reported.isnan()]
    return LogprobGap(
        largest=float(gaps.max()),
        mean=float(gaps.mean()),
        rounding=0.0 if rounded is None else float((rounded - exact).abs().mean()),
    )


def gap_file(setting: Setting) -> Path:
    """Return the file in which a contender leaves how exact it is."""
    return setting.folder / f"{setting.kind}.gap.json"


def read_gap(setting: Setting) -> LogprobGap:
    """Return how exact a contender was."""
    return LogprobGap(**json.loads(gap_file(setting).read_text()))


def load_file(folder: Path) -> Path:
    """Return the file in which our engine leaves what it computed for the 96 requests."""
    return folder / "load.json"


def check_exactness(made: Sampler, setting: Setting) -> None:
    """Write down how exact log-probs are, also after a load; `SystemExit` where ours are not."""
    most = 32 if setting.workload.model else 100
    workload = replace(setting.workload, longest=min(most, setting.workload.longest))
    work = jobs(workload, 8 if workload.model else SLOTS)
    gaps: list[LogprobGap] = []
    for seed in (0, 1):
        model = workload.policy(seed)
        if seed:
            made.load(model.state_dict())
        gaps.append(compare_logprobs(model, work, made.sample(work)))
    made.load(workload.policy().state_dict())
    gap = LogprobGap(
        largest=max(gap.largest for gap in gaps),
        mean=sum(gap.mean for gap in gaps) / 2,
        rounding=sum(gap.rounding for gap in gaps) / 2,
    )
    gap_file(setting).write_text(json.dumps(asdict(gap)))
    if not gap.is_exact and setting.kind.startswith("ours"):
        raise SystemExit(f"log-probs of {setting.kind} are wrong ({gap}); speed is not measured")


def contenders(
    kinds: Sequence[Kind], workload: Workload, folder: Path, programs: Mapping[Kind, str]
) -> dict[str, Contender]:
    """Return who is measured, each in a process of its own."""
    made: dict[str, Any] = {}
    for kind in kinds:
        count = 32 if kind == "generate" else 96
        setting = Setting(kind, workload, folder, programs.get(kind, ""))
        made[f"gen{count}, {kind}"] = partial(set_up_work, setting, count=count)
        if workload.model is None:
            made[f"first token, {kind}"] = partial(set_up_first_token, setting)
            made[f"new weights, {kind}"] = partial(set_up_new_weights, setting)
    made["gen32, ours"] = partial(set_up_work, Setting("ours", workload, folder), count=32)
    return {
        name: Contender(set_up=set_up, own_process=True, environ=THREADS, timeout_s=TIMEOUT_S)
        for name, set_up in made.items()
    }


def state(bench: Benchmark, workload: Workload, runs: dict[str, list[Measurement]]) -> None:
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
        goal=1.3 if workload.model else 2.5,
    )
    bench.ratio(
        "gen32, ours to generate",
        runs["gen32, ours"],
        runs["gen32, generate"],
        peer="model.generate, static batch of 32",
        goal=1.3 if workload.model else 10,
    )
    for kind in ("vLLM", "llama.cpp"):
        if theirs := runs.get(f"gen96, {kind}"):
            bench.ratio(
                f"gen96, ours to {kind}",
                served,
                theirs,
                peer=f"{kind}, each in its own process",
                goal=1.3 if workload.model else None,
            )


def state_gap(bench: Benchmark, kind: Kind, gap: LogprobGap) -> None:
    """State how far a contender's log-probs are from float32."""
    bench.row(
        f"log-prob error, {kind}",
        gap.largest,
        unit="nats",
        peer="full forward in float32",
        goal=None if gap.rounding else TOLERANCE_NATS,
        better="lower",
    )
    if gap.rounding:
        bench.row(
            f"log-prob error on average, {kind}",
            gap.mean,
            unit="nats",
            peer=f"full forward in float32; that in bfloat16 is {gap.rounding:.4f} off",
            goal=ROUNDING_TOLERANCE * gap.rounding,
            better="lower",
        )


def state_roof(
    bench: Benchmark, workload: Workload, folder: Path, runs: Sequence[Measurement]
) -> None:
    """State how near the engine is to the machine's own speed, and that it shares prompts."""
    sizes: StepSizes = Counter()
    for rows, wanted, steps in json.loads(load_file(folder).read_text()):
        sizes[rows, wanted] = steps
    products_cpu_s = ProductRoof(workload.policy()).cpu_s(sizes)
    bench.middle(
        "gen96, ours, share of its products' roof",
        [products_cpu_s / run.cpu_s for run in runs],
        unit="",
        peer="the same matrix products alone",
        goal=0.6,
    )
    work = jobs(workload, 96)
    computed = sum(rows * steps for (rows, _), steps in sizes.items())
    computed -= sum(job.tokens - 1 for job in work)
    prompts = len({job.prompt for job in work})
    bench.row(
        "gen96, ours, prompt tokens computed",
        computed,
        unit="tokens",
        peer="each prompt once, and the last token of each request",
        goal=prompts * (workload.prompt_tokens - 1) + len(work),
        better="lower",
    )


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


def workload_of(
    model: str | None, quick: bool, *, mean: int, longest: int, dtype: Dtype = "float32"
) -> Workload:
    """Return the workload of a model folder, or of the tiny model."""
    if model is None:
        return Workload(longest=100, dtype=dtype) if quick else Workload(dtype=dtype)
    return Workload(
        model=model,
        vocabulary=AutoConfig.from_pretrained(model).get_text_config().vocab_size,
        prompt_tokens=300,
        group_size=8,
        mean=mean,
        longest=longest,
        dtype=dtype,
    )


def main() -> None:
    """Measure, print, write."""
    options = parser(__doc__)
    options.add_argument(
        "--model",
        metavar="FOLDER",
        help="measure a Llama-like model of this folder, on prompts that groups share",
    )
    options.add_argument(
        "--mean", type=positive, default=16, help="tokens of a request, with --model (default 16)"
    )
    options.add_argument(
        "--longest", type=positive, default=64, help="tokens of one, with --model (default 64)"
    )
    options.add_argument(
        "--dtype", choices=get_args(Dtype), default="float32", help="of everybody (default float32)"
    )
    options.add_argument(
        "--vllm-python",
        type=Path,
        default=VLLM_PYTHON,
        metavar="FILE",
        help=f"interpreter that has vLLM (default {VLLM_PYTHON})",
    )
    options.add_argument(
        "--llama-server",
        metavar="FILE",
        help="llama.cpp's server (default llama-server of the PATH)",
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
    server: str | None = given.llama_server or shutil.which("llama-server")
    if server is None or given.model is None:
        kinds.remove("llama.cpp")
        if given.model is not None:
            bench.notes.append(
                "llama.cpp is not measured: there is no llama-server; build one with "
                "-DGGML_NATIVE=ON, and name it as --llama-server"
            )
    programs: dict[Kind, str] = {"vLLM": str(given.vllm_python), "llama.cpp": server or ""}
    workload = workload_of(
        given.model, bench.quick, mean=given.mean, longest=given.longest, dtype=given.dtype
    )
    bench.notes.append(f"everybody's weights and products are {workload.dtype}")
    with tempfile.TemporaryDirectory(prefix="agentrl-engines-") as made:
        folder = Path(made)
        samplers.save_policy(workload, folder)
        runs = bench.compare(contenders(kinds, workload, folder, programs))
        for kind in kinds:
            if kind != "generate":
                state_gap(bench, kind, read_gap(Setting(kind, workload, folder)))
        state(bench, workload, runs)
        if workload.model is not None:
            state_roof(bench, workload, folder, runs["gen96, ours"])
    bench.finish()


if __name__ == "__main__":
    main()

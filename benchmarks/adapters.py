"""What an update of adapters costs an engine in a process of its own, beside one of whole weights.

The model is a random 75 M Qwen3 (float32) with adapters of rank 16 at all linear layers, as
`learn.lora` makes them; one thread each. An update is new adapters from the trainer's process to
the answer with the first token under them, after a prompt of 64.

- *whole*: the trainer merges, and all weights are copied and loaded, as before adapters travelled
  alone.
- *adapters*: only they are copied; the engine merges them from its base.
- *native*: only they are copied, and vLLM computes them apart (`engine.vllm.adapters`).

The first updates, in which the base goes over, are not in these figures: they are in every run's
set-up, which compares log-probs with a plain forward pass. vLLM is
that of `--vllm-python`; without one its rows are missing, and a note says so.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agentrl.chat.tokenizer import train_tokenizer
from agentrl.engine.remote import ProcessEngine
from agentrl.engine.remote.shared_weights import SharedWeights
from agentrl.engine.spec import EngineSpec
from agentrl.policy import Completion, GenerateRequest
from agentrl.weight_sync.adapters import AdapterWeights, BaseWeights, LoraAdapter
from benchmarks.harness import Benchmark, Contender, Run, parser

VOCABULARY = 8192
RANK = 16
LAYERS, QUICK_LAYERS = 10, 2
UPDATES, QUICK_UPDATES = 8, 2
TOLERANCE_NATS = 1e-3
VLLM_PYTHON = Path(".bench/vllm/bin/python")
THREADS = {"OMP_NUM_THREADS": "1"}
Kind = Literal["local, whole", "local, adapters", "vLLM, whole", "vLLM, adapters", "vLLM, native"]
KINDS: tuple[Kind, ...] = (
    "local, whole",
    "local, adapters",
    "vLLM, whole",
    "vLLM, adapters",
    "vLLM, native",
)


def policy(layers: int = LAYERS) -> PreTrainedModel:
    """Return the model, the same in every process."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=768,
        intermediate_size=2304,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def update(base: BaseWeights, number: int) -> AdapterWeights:
    """Return the base with the adapters of an update."""
    made = torch.Generator().manual_seed(number)

    def noise(*shape: int) -> Tensor:
        return 0.02 * torch.randn(*shape, generator=made)

    chosen = {n: v for n, v in base.weights.items() if n.endswith("_proj.weight")}
    return AdapterWeights(
        base,
        {
            name: LoraAdapter(noise(RANK, weight.shape[1]), noise(weight.shape[0], RANK), scale=2.0)
            for name, weight in chosen.items()
        },
    )


def engine(kind: Kind, folder: Path, python: str) -> ProcessEngine:
    """Return an engine that has not begun."""
    recipe = EngineSpec(
        kind="vllm" if kind.startswith("vLLM") else "local",
        folder=str(folder),
        slots=8,
        context_tokens=128,
        vllm={
            "sampler": "agentrl",
            **({"adapter_rank": RANK} if kind.endswith("native") else {}),
        },
    )
    return ProcessEngine(recipe, python=python if recipe.kind == "vllm" else sys.executable)


def given(kind: Kind, weights: AdapterWeights) -> Mapping[str, Tensor]:
    """Return an update as an engine of a kind is given it."""
    return dict(weights) if kind.endswith("whole") else weights


def request(number: int) -> GenerateRequest:
    """Return what asks for one token."""
    prompt = torch.randint(VOCABULARY, (64,), generator=torch.Generator().manual_seed(number))
    return GenerateRequest(
        id=str(number), prompt=tuple(prompt.tolist()), max_new_tokens=1, seed=number
    )


def set_up(kind: Kind, folder: Path, python: str, *, layers: int, updates: int) -> Run:
    """Get ready to update an engine that has had its first updates; the work is updates.

    Raises `SystemExit` for an engine whose log-probs are not those of the updates.
    """
    torch.set_num_threads(1)
    runner, served = asyncio.Runner(), engine(kind, folder, python)
    model = policy(layers)
    base = BaseWeights({name: value.detach().clone() for name, value in model.state_dict().items()})
    made = [update(base, number) for number in range(updates + 1)]

    async def take(number: int) -> Completion:
        await served.load(given(kind, made[number]), number)
        return await served.generate(request(number))

    for number in (1, 0):
        got = runner.run(take(number))
    gap = gap_nats(model, made[0], request(0), got)
    gap_file(folder, kind).write_text(str(gap))
    if gap > TOLERANCE_NATS:
        raise SystemExit(f"{kind}: log-probs differ by {gap} nats; nothing is measured")

    def run() -> float:
        for number in range(1, updates + 1):
            runner.run(take(number))
        return updates

    return run


def gap_file(folder: Path, kind: Kind) -> Path:
    """Return the file in which a contender leaves how exact it is."""
    return folder / f"{kind}.gap"


def gap_nats(
    model: PreTrainedModel, weights: AdapterWeights, asked: GenerateRequest, got: Completion
) -> float:
    """Return how far the log-prob of a token is from a plain forward pass; changes `model`."""
    model.load_state_dict(dict(weights))
    with torch.inference_mode():
        logprobs = model(torch.tensor([asked.prompt])).logits[0, -1].log_softmax(-1)
    return abs(float(logprobs[got.token_ids[0]]) - got.logprobs[0])


def main() -> None:
    """Check, measure and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--vllm-python", default=str(VLLM_PYTHON), metavar="FILE")
    asked = arguments.parse_args()
    bench = Benchmark.from_arguments("adapters", asked)
    kinds: list[Kind] = list(KINDS)
    ran = Path(asked.vllm_python).exists() and subprocess.run(
        [asked.vllm_python, "-c", "import vllm"], capture_output=True, check=False
    )
    if not ran or ran.returncode:
        kinds = [kind for kind in KINDS if not kind.startswith("vLLM")]
        bench.notes.append(f"{asked.vllm_python} has no vLLM: its rows are missing")
    layers = QUICK_LAYERS if bench.quick else LAYERS
    updates = QUICK_UPDATES if bench.quick else UPDATES
    base = BaseWeights(
        {name: value.detach() for name, value in policy(layers).state_dict().items()}
    )
    for name in ("whole", "adapters"):
        shared = SharedWeights(given("local, " + name, update(base, 0)))  # pyright: ignore[reportArgumentType]
        bench.row(f"bytes of an update, {name}", shared.path.stat().st_size / 1e6, unit="MB")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy(layers).save_pretrained(folder)
        train_tokenizer(["nobody reads what is sampled here"], vocab_size=300, folder=folder)
        runs = bench.compare(
            {
                kind: Contender(
                    set_up=partial(
                        set_up,
                        kind,
                        folder,
                        asked.vllm_python,
                        layers=layers,
                        updates=updates,
                    ),
                    own_process=True,
                    environ=THREADS,
                )
                for kind in kinds
            }
        )
        gaps = {kind: float(gap_file(folder, kind).read_text()) for kind in kinds}
    for kind in kinds:
        error = f"log-prob error, {kind}"
        bench.row(error, gaps[kind], unit="nats", goal=TOLERANCE_NATS, better="lower")
        bench.cost(f"update, {kind}", runs[kind], unit="ms", by="wall")
        bench.cost(f"update, {kind}, CPU", runs[kind], unit="ms")
    bench.finish()


if __name__ == "__main__":
    main()

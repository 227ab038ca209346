"""Forward and backward passes over sequences that share prefixes: padded, packed, as a tree.

- `8 x (512 + 128)`: eight branches of 128 tokens after a prompt of 512; with 4 M and 49 M
  parameters. All layouts compute log-probs of the branches, their entropies, and the gradient.
- `unequal`: branches of 16 to 256 tokens. `nested`: branches of branches, at four depths.
- `quickstart`, `quickstart, AEPO`: groups that a run has played, each piece as long as it was
  (`recorded/`, see shapes.py). Few tokens are shared, most so without branching.
- Peak memory: what a step adds at most to the resident memory of a process of its own.

Work is tokens of the sequences, not of the forward pass: the same for every layout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agentrl.config.learn import LayoutName
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.token_logprobs import score
from agentrl.message import ImageSpan
from benchmarks.harness import Benchmark, Contender, Run
from benchmarks.measure import measure
from benchmarks.shapes import recorded

VOCABULARY = 4096
LIMIT_TOKENS = 8192
LAYOUT_NAMES: tuple[LayoutName, ...] = ("padded", "packed", "tree")
PEER = "padded rows"


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a policy."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int

    def policy(self) -> PreTrainedModel:
        """Return it with random weights."""
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=self.hidden,
            intermediate_size=3 * self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=64,
            max_position_embeddings=16_384,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
        return Qwen3ForCausalLM(config).eval()


SMALL = Size(hidden=256, layers=4, heads=4, kv_heads=2)
"""4.2 M parameters."""
LARGE = Size(hidden=512, layers=15, heads=8, kv_heads=4)
"""49.3 M parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Random tokens, and which of them train."""

    token_ids: ndarray
    mask: ndarray
    images: tuple[ImageSpan, ...] = ()


Shape = Callable[[], list[Drawn]]


def branches(shared: int, lengths: Sequence[int]) -> list[Drawn]:
    """Return branches of these lengths after `shared` tokens; a branch trains."""
    random = np.random.default_rng(0)
    prompt = random.integers(0, VOCABULARY, shared)
    return [grown(random, prompt, length, trained=True) for length in lengths]


def nested(depth: int, length: int) -> list[Drawn]:
    """Return the leaves of a binary tree whose edges are `length` tokens long and train."""
    random = np.random.default_rng(0)
    grown_so_far = [Drawn(random.integers(0, VOCABULARY, length), np.zeros(length, dtype=bool))]
    for _ in range(depth):
        grown_so_far = [
            Drawn(new.token_ids, np.append(old.mask, new.mask[len(old.mask) :]))
            for old in grown_so_far
            for new in (grown(random, old.token_ids, length, trained=True) for _ in range(2))
        ]
    return grown_so_far


def rollouts(name: str) -> list[Drawn]:
    """Return the trajectories of the groups in `recorded/`, with random tokens in them."""
    random = np.random.default_rng(0)
    found: list[Drawn] = []
    for group in recorded(name):
        tokens = [random.integers(0, VOCABULARY, piece.tokens) for piece in group.pieces]
        masks = [np.full(piece.tokens, piece.trains) for piece in group.pieces]
        for leaf in group.leaves:
            path = group.path(leaf)
            found.append(
                Drawn(
                    np.concatenate([tokens[piece] for piece in path]),
                    np.concatenate([masks[piece] for piece in path]),
                )
            )
    return found


def grown(random: np.random.Generator, begun: ndarray, length: int, *, trained: bool) -> Drawn:
    """Return `begun` with `length` random tokens after it, which train or do not."""
    own = random.integers(0, VOCABULARY, length)
    mask = np.arange(len(begun) + length) >= len(begun)
    return Drawn(np.concatenate([begun, own]), mask & trained)


def step(
    model: PreTrainedModel,
    sequences: Sequence[Drawn],
    layout: LayoutName,
    *,
    limit_tokens: int = LIMIT_TOKENS,
) -> float:
    """Do a forward and a backward pass over all of them; return how many tokens they have."""
    chosen = LAYOUTS[layout](limit_tokens)
    model.zero_grad(set_to_none=True)
    for indices in chosen.plan(sequences):
        tokens = chosen.tokens([sequences[i] for i in indices], device=model.device)
        found = score(model, tokens, temperature=1.0, head_at_positions=True)
        found.logprobs.sum().backward()
    return float(sum(len(one.token_ids) for one in sequences))


def training(size: Size, shape: Shape, layout: LayoutName, repeats: int) -> Run:
    """Return a run of `repeats` steps, warm."""
    torch.set_num_threads(1)
    model, sequences = size.policy(), shape()
    step(model, sequences, layout)
    return lambda: sum(step(model, sequences, layout) for _ in range(repeats))


def peak(size: Size, shape: Shape, layout: LayoutName, limit_tokens: int = LIMIT_TOKENS) -> Run:
    """Return a run whose work is the memory that the first step adds, in MB."""
    torch.set_num_threads(1)
    model, sequences = size.policy(), shape()
    step(model, [Drawn(one.token_ids[:40], one.mask[-40:]) for one in sequences[:1]], layout)

    def run() -> float:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = resident_kb("VmRSS")
        step(model, sequences, layout, limit_tokens=limit_tokens)
        return (resident_kb("VmHWM") - before) / 1e3

    return run


def resident_kb(field: str) -> int:
    """Return a size of this process from the kernel's account: `VmRSS` now, `VmHWM` at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise ValueError(f"/proc/self/status has no {field}; this benchmark needs Linux")


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured, and how many times faster than padded rows a tree is to be."""

    size: Size
    shape: Shape
    repeats: int = 1
    goal: float | None = None


def cases(*, quick: bool) -> dict[str, Case]:
    """Return everything that is measured."""
    wide = partial(branches, 512, [128] * 8)
    small = {
        "4 M, 8 x (512 + 128)": Case(SMALL, wide, goal=2.8),
        "4 M, unequal": Case(SMALL, partial(branches, 256, [16, 32, 48, 64, 96, 128, 192, 256])),
        "4 M, nested": Case(SMALL, partial(nested, 4, 64)),
        "4 M, quickstart": Case(SMALL, partial(rollouts, "quickstart"), repeats=4),
        "4 M, quickstart, AEPO": Case(SMALL, partial(rollouts, "quickstart-aepo"), repeats=4),
    }
    return small if quick else small | {"49 M, 8 x (512 + 128)": Case(LARGE, wide, goal=3.3)}


def main() -> None:
    """Measure, print and write."""
    bench = Benchmark.from_command_line("training", __doc__)
    for name, case in cases(quick=bench.quick).items():
        arguments = (case.size, case.shape)
        runs = bench.compare(
            {
                f"{name}, {layout}": Contender(
                    set_up=partial(training, *arguments, layout, case.repeats)
                )
                for layout in LAYOUT_NAMES
            }
        )
        padded = runs[f"{name}, padded"]
        for layout in LAYOUT_NAMES:
            bench.rate(f"{name}, {layout}", runs[f"{name}, {layout}"], unit="tokens")
        for layout, goal in (("packed", None), ("tree", case.goal)):
            ours = runs[f"{name}, {layout}"]
            bench.ratio(f"{name}, {layout}, speed", ours, padded, peer=PEER, goal=goal)
        if case.goal is None:
            continue
        added = {
            layout: measure(Contender(set_up=partial(peak, *arguments, layout), own_process=True))
            for layout in LAYOUT_NAMES
        }
        for layout, run in added.items():
            bench.row(f"{name}, {layout}, memory a step adds", run.work, unit="MB", better="lower")
        share = added["tree"].work / added["padded"].work
        bench.row(f"{name}, tree, memory", share, unit="x", peer=PEER, goal=0.5, better="lower")
    bench.finish()


if __name__ == "__main__":
    main()

"""The trainer with moments in 8 bits, on torchao itself. Mutant applied by hand and seen caught:
moments rounded again where as many ranks go on.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

from agentrl.config.learn import AdamWSection, LearnSection
from agentrl.config.run import MakePolicySection
from agentrl.learn.checkpoint import latest, load
from agentrl.learn.dtensor import gather_tensor, local
from agentrl.learn.optimizer import AdamW
from agentrl.learn.quantized_moments import MOMENTS, join_moment
from agentrl.learn.ranks import ALONE, TrainerRanks
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import make_model
from tests.support.learning import VOCABULARY, save, trees_of
from tests.support.sharded import World, world

pytestmark = [pytest.mark.torchao, pytest.mark.slow]

PLACE = Path(__file__).parents[3] / ".bench/torchao"
SHAPES = {"even": (96, 256), "uneven": (151, 256), "blocks across rows": (192, 64), "small": (9, 8)}
"""The third has blocks that end within rows; on three ranks they begin at others than on one."""


@pytest.fixture(scope="module", autouse=True)
def torchao() -> None:
    # Not taken away again: what is imported stays, and imports more of itself later.
    sys.path.append(str(PLACE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its sources, where nothing has compiled them yet
        import_module("torchao.optim")


@pytest.fixture(scope="module")
def ranks(torchao: None) -> Iterator[World]:
    with world() as opened:
        yield opened


def section(**changes: Any) -> AdamWSection:
    plain = {"learning_rate": 1e-3, "weight_decay": 0.01, "moments": "8bit"}
    return AdamWSection.model_validate(plain | changes)


def layers(ranks: TrainerRanks) -> nn.ParameterDict:
    """Return a parameter of each shape, in shards where there are several ranks."""
    found: dict[str, nn.Parameter] = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        value = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        found[name] = nn.Parameter(place(value, ranks))
    return nn.ParameterDict(found)


def place(value: Tensor, ranks: Any) -> Tensor:
    if ranks.size == 1:
        return value
    return distribute_tensor(value, ranks._mesh, [Shard(0)], src_data_rank=None)


def update(optimizer: AdamW, ranks: TrainerRanks, *, seeds: Sequence[int]) -> None:
    for seed in seeds:
        for index, weight in enumerate(optimizer.named_parameters().values()):
            random = torch.Generator().manual_seed(100 * seed + index)
            weight.grad = place(torch.randn(weight.shape, generator=random), ranks)
        optimizer.update()


def numbers(optimizer: AdamW) -> dict[str, Tensor]:
    """Return all moments in float32 and whole, by name."""
    found: dict[str, Tensor] = {}
    state = optimizer.state()
    for name, weight in optimizer.named_parameters().items():
        for kind in MOMENTS:
            parts = {k.partition(".")[0]: v for k, v in state.items() if k.endswith(f".{name}")}
            moment = join_moment(kind, parts, weight, quantizes=False)
            assert moment is not None
            found[f"{kind}.{name}"] = gather_tensor(moment).clone()
    return found


def written(ranks: TrainerRanks, folder: Path, count: int) -> dict[str, Tensor]:
    """Write the state after some updates; return its moments."""
    optimizer = AdamW(layers(ranks), section())
    update(optimizer, ranks, seeds=range(count))
    ranks.write(folder, "optimizer", optimizer.state(masters=True))
    return numbers(optimizer) | {n: gather_tensor(v) for n, v in optimizer.weights().items()}


def resumed(
    ranks: TrainerRanks, folder: Path, first: int, count: int, moments: str = "8bit"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the moments that were read, and what came of further updates."""
    optimizer = AdamW(layers(ranks), section(moments=moments))
    weights = optimizer.weights()
    kinds = ("exp_avg", "exp_avg_sq", "exp_avg_codes", "exp_avg_sq_codes", "master")
    like = {f"{kind}.{name}": value for name, value in weights.items() for kind in kinds}
    optimizer.load_state(ranks.read(folder, "optimizer", like), updates=first)
    before = numbers(optimizer)
    update(optimizer, ranks, seeds=range(first, first + count))
    after = numbers(optimizer) | {n: gather_tensor(v) for n, v in optimizer.weights().items()}
    return before, after


def on(ranks: World, size: int, work: Any, *args: Any) -> Any:
    return work(ALONE, *args) if size == 1 else ranks.run(work, *args, size=size)[0]


def rounding(moments: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how much 8 bits may move a number: the widest gap between two values of a code is a
    fiftieth of the largest number of a block."""
    return {name: float(value.abs().max()) / 50 for name, value in moments.items()}


def test_updates_are_those_of_torchao() -> None:
    from torchao.optim import AdamW8bit  # pyright: ignore[reportMissingImports]

    mine = AdamW(layers(ALONE), section(max_grad_norm=1e9))
    theirs = layers(ALONE)
    other = AdamW8bit(list(theirs.values()), lr=1e-3, weight_decay=0.01)
    update(mine, ALONE, seeds=range(3))
    for seed in range(3):
        for index, weight in enumerate(theirs.values()):
            random = torch.Generator().manual_seed(100 * seed + index)
            weight.grad = torch.randn(weight.shape, generator=random)
        with torch.compiler.set_stance("force_eager"):
            other.step()
    for name, weight in mine.weights().items():
        if name == "small":  # that one is torch's own
            assert torch.allclose(weight, theirs[name], rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(weight, theirs[name])


def test_moments_take_a_quarter_of_the_bytes() -> None:
    optimizer = AdamW(layers(ALONE), section())
    update(optimizer, ALONE, seeds=[0])
    state = optimizer.state()
    assert {n for n in state if n.endswith(".even")} == {
        "step.even",
        *(f"{kind}{end}.even" for kind in MOMENTS for end in ("_codes", "_scales")),
    }
    assert {n for n in state if n.endswith(".small")} == {f"{k}.small" for k in (*MOMENTS, "step")}
    held = sum(v.nbytes for n, v in state.items() if n.endswith(".even"))
    numbers_held = 96 * 256
    assert held == 2 * (numbers_held + 4 * numbers_held // 256) + 4


def test_the_rate_is_that_of_the_schedule() -> None:
    weights = layers(ALONE)
    before = {name: value.detach().clone() for name, value in weights.items()}
    optimizer = AdamW(weights, section(warmup_steps=4, weight_decay=0.0))
    update(optimizer, ALONE, seeds=[0])
    for name, value in weights.items():  # the first update moves each weight by the rate
        moved = (value.detach() - before[name]).abs()
        assert float(moved.median()) == pytest.approx(2.5e-4, rel=0.05)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_as_many_ranks_go_on_bit_for_bit(ranks: World, tmp_path: Path, size: int) -> None:
    for name in ("whole", "half"):
        (tmp_path / name).mkdir()
    unbroken = on(ranks, size, written, tmp_path / "whole", 4)
    half = on(ranks, size, written, tmp_path / "half", 2)
    before, after = on(ranks, size, resumed, tmp_path / "half", 2, 2)
    assert all(torch.equal(before[name], half[name]) for name in before)
    assert after.keys() == unbroken.keys()
    assert all(torch.equal(value, unbroken[name]) for name, value in after.items())


@pytest.mark.parametrize(("size", "next_size"), [(1, 2), (2, 1), (3, 2), (2, 3), (3, 1)])
def test_another_number_of_ranks_rounds_once_more(
    ranks: World, tmp_path: Path, size: int, next_size: int
) -> None:
    half = on(ranks, size, written, tmp_path, 2)
    before, _ = on(ranks, next_size, resumed, tmp_path, 2, 1)
    limits = rounding(half)
    for name, value in before.items():
        assert float((value - half[name]).abs().max()) <= limits[name], name
    for kind in MOMENTS:  # nothing was rounded that is too small for it
        assert torch.equal(before[f"{kind}.small"], half[f"{kind}.small"])


def test_a_state_is_read_in_the_other_precision(ranks: World, tmp_path: Path) -> None:
    half = written(ALONE, tmp_path, 2)
    before, _ = resumed(ALONE, tmp_path, 2, 1, "float32")
    assert all(torch.equal(value, half[name]) for name, value in before.items())
    exact = AdamW(layers(ALONE), section(moments="float32"))
    update(exact, ALONE, seeds=range(2))
    rounded = AdamW(layers(ALONE), section())
    rounded.load_state(exact.state(), updates=2)
    limits = rounding(numbers(exact))
    for name, value in numbers(rounded).items():
        assert float((value - numbers(exact)[name]).abs().max()) <= limits[name], name


def trained(
    ranks: TrainerRanks, folder: Path, steps: int, moments: str = "8bit", precision: str = "float32"
) -> dict[str, Tensor]:
    """Go on from the newest checkpoint by so many steps, and write another."""
    small = MakePolicySection(
        hidden_size=64, layers=2, heads=2, kv_heads=1, head_dim=64, intermediate_size=192
    )
    model = make_model(
        small, vocab_size=VOCABULARY, eos_token_id=1, pad_token_id=0, context_tokens=64, seed=0
    )
    config = LearnSection.model_validate(
        {"optimizer": {"learning_rate": 1e-3, "moments": moments}, "precision": precision}
    )
    trainer = PolicyTrainer(model, config, seed=1, steps=6, ranks=ranks)
    newest = latest(folder)
    if newest is not None and ranks.rank == 0:
        load(newest, trainer)
    elif newest is not None:
        trainer.read_state(newest)
    for _ in range(steps):
        trainer.step(trees_of(3, seed=trainer.version, version=trainer.version))
    if ranks.rank == 0:
        save(folder, trainer, keep=9)
    else:
        trainer.weights()
        trainer.write_state(folder / f".step-{trainer.version:06d}.partial")
    state = trainer.optimizer.state()
    assert any("_codes." in name for name in state) == (moments == "8bit")
    named = trainer.optimizer.weights() | {n: v for n, v in state.items() if "master" not in n}
    return {
        name: gather_tensor(local(v) if v.dim() == 0 else v).clone() for name, v in named.items()
    }


@pytest.mark.parametrize(("size", "precision"), [(1, "float32"), (1, "bfloat16"), (2, "bfloat16")])
def test_a_trainer_resumes_bit_for_bit(
    ranks: World, tmp_path: Path, size: int, precision: str
) -> None:
    unbroken = on(ranks, size, trained, tmp_path / "unbroken", 4, "8bit", precision)
    on(ranks, size, trained, tmp_path / "broken", 2, "8bit", precision)
    again = on(ranks, size, trained, tmp_path / "broken", 2, "8bit", precision)
    assert again.keys() == unbroken.keys()
    assert all(torch.equal(value, unbroken[name]) for name, value in again.items())


def test_training_is_near_that_with_moments_in_float32(tmp_path: Path) -> None:
    first = trained(ALONE, tmp_path / "start", 0, "float32")
    exact = trained(ALONE, tmp_path / "float32", 4, "float32")
    rounded = trained(ALONE, tmp_path / "8bit", 4)
    weights = [name for name in exact if name.endswith("weight") and "exp_avg" not in name]
    moved = torch.cat([(exact[n] - first[n]).flatten() for n in weights if n in first])
    apart = torch.cat([(exact[n] - rounded[n]).flatten() for n in weights if n in first])
    assert 0 < float(apart.norm() / moved.norm()) < 0.25

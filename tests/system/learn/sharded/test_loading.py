"""What a rank holds while its model is loaded and cut up: its own part, and one layer at a time.

Mutants seen caught: all weights turned into float32 before they are cut up; a reference that is a
copy of its own before it is cut up; a checkpoint read in another type than it was written in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.config.learn import LearnSection
from agentrl.learn.checkpoint import latest
from agentrl.learn.dtensor import gather_tensor
from agentrl.learn.ranks import TrainerRanks
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model
from tests.support.learning import save, trees_of
from tests.support.memory import watch_memory
from tests.support.sharded import World, world

MB = 2**20
SLACK = 24 * MB
"""What Gloo, the allocator and Python take beside weights: up to 17 MB on a busy machine. A model
that is not cut up takes 70 MB more."""
LAYER = 5 * 512 * 1536 + 2 * 512 * 64
"""At most so many weights has a layer."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[World]:
    with world() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of 35 million weights, a third of them in its vocabulary, in bfloat16."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=12_000,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=1536,
        tie_word_embeddings=False,
    )
    place = tmp_path_factory.mktemp("model")
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(place)
    return place


def shard_within(ranks: TrainerRanks, folder: Path, changes: dict[str, Any]) -> tuple[int, int]:
    """Return how much a rank had at most while it became a trainer, and its part, in bytes."""
    config = LearnSection.model_validate(changes)
    # What is imported and allocated once is there before.
    model = load_model(folder, dtype="bfloat16", device="cpu")
    ranks.total(torch.zeros(1))
    del model
    with watch_memory() as peak:
        model = load_model(folder, dtype="bfloat16", device="cpu")
        trainer = ShardedOnly(model, config, seed=0, ranks=ranks)
    parts = trainer.parts()
    return peak.bytes, parts


class ShardedOnly(PolicyTrainer):
    """A trainer that stops where its model is in shards: trying it takes whole layers."""

    def __init__(self, model: Any, config: LearnSection, *, seed: int, ranks: TrainerRanks) -> None:
        self.model, self.ranks, self._seed = model, ranks, seed
        self._types, self._identity = {}, {}
        self._frozen = self._prepare(config, needs_reference=config.kl is not None)

    def parts(self) -> int:
        """Return the bytes of this rank's parts."""
        models = [m for m in (self.model, self._frozen) if m is not None]
        return sum(
            p.to_local().nbytes  # pyright: ignore[reportAttributeAccessIssue]
            for model in models
            for p in model.parameters()
        )


@pytest.mark.parametrize(
    "changes",
    [{"precision": "bfloat16"}, {}, {"precision": "bfloat16", "kl": {"coefficient": 0.1}}],
    ids=["bfloat16", "float32", "reference"],
)
def test_a_rank_holds_its_part_and_one_layer(
    ranks: World, folder: Path, changes: dict[str, Any]
) -> None:
    for peak, part in ranks.run(shard_within, folder, changes, size=2):
        assert part > 60 * MB
        assert peak < part + 4 * LAYER + SLACK, f"{peak / MB:.0f} MiB for {part / MB:.0f}"


def resume_within(
    ranks: TrainerRanks, folder: Path, to: Path
) -> tuple[int, int, float, dict[str, torch.Tensor]]:
    """Write a checkpoint after a step; return the most memory that a new trainer took to read it,
    the bytes of its part, the next loss, and its weights."""
    config = LearnSection.model_validate({"precision": "bfloat16"})
    trainer = PolicyTrainer(
        load_model(folder, dtype="bfloat16", device="cpu"), config, seed=0, ranks=ranks
    )
    trainer.step(trees_of(2, seed=0, version=0))
    if ranks.rank == 0:
        save(to, trainer, keep=1)
    else:
        trainer.weights()
        trainer.write_state(to / f".step-{trainer.version:06d}.partial")
    ranks.total(torch.zeros(1))
    newest = latest(to)
    assert newest is not None
    again = PolicyTrainer(
        load_model(folder, dtype="bfloat16", device="cpu"), config, seed=0, ranks=ranks
    )
    with watch_memory() as peak:
        again._load_weights(newest)  # pyright: ignore[reportPrivateUsage]
    weights = {n: gather_tensor(p).clone() for n, p in again.model.state_dict().items()}
    part = sum(p.numel() for p in again.model.parameters()) * 4 // ranks.size
    loss = again.step(trees_of(2, seed=1, version=0))["loss"]
    return peak.bytes, part, loss, weights


@pytest.mark.nightly
def test_a_checkpoint_is_read_one_tensor_at_a_time(
    ranks: World, folder: Path, tmp_path: Path
) -> None:
    first, second = ranks.run(resume_within, folder, tmp_path, size=2)
    saved = load_model(tmp_path / "step-000001", dtype="bfloat16", device="cpu").state_dict()
    for peak, _, _, weights in (first, second):
        # Of the largest tensor, rows of this rank in the type of the file.
        assert peak < 12_000 * 512 * 2 + SLACK, f"{peak / MB:.0f} MiB"
        assert all(torch.equal(weights[n], value.float()) for n, value in saved.items())
    assert first[2] == second[2]

"""Checkpoints, and the models they are made of. Mutants applied by hand and seen caught:

- moments, their step count, `updates`, `version` or a random state not restored: resume tests
- written in place instead of renamed; partial folder left behind; OSError let through: full disk
- hash or size not compared: damage tests; model not compared: other-model test
- newest by name length or creation in place of step; one too many kept: order test
- masters, adapters or the average not restored; weights saved as the average: resume and `ema/`
- `make_model` seeded globally: random-state test
"""

import json
import random
import resource
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from agentrl.config.learn import AdamWSection, EmaSection, LearnSection, LoraSection
from agentrl.config.run import MakePolicySection
from agentrl.errors import ConfigError, LearnError
from agentrl.learn.checkpoint import CheckpointManager, latest, load
from agentrl.learn.randomness import random_state, set_random_state
from agentrl.learn.trainer import PolicyTrainer
from agentrl.models.folders import load_model, load_tokenizer, make_model
from agentrl.task import Task
from agentrl.trajectory import Finished, Leaf, Node, Tree
from tests.support.learning import save
from tests.support.rights import has_rights_of_new_files

CONFIG = LearnSection(
    minibatches=2, optimizer=AdamWSection(learning_rate=1e-2, weight_decay=0.01, warmup_steps=3)
)


def policy(seed: int = 0, *, tied: bool = True, hidden_size: int = 16) -> PreTrainedModel:
    """Return a two-layer Qwen3 with random weights."""
    section = MakePolicySection(
        hidden_size=hidden_size,
        layers=2,
        heads=2,
        kv_heads=2,
        head_dim=8,
        intermediate_size=32,
        tie_embeddings=tied,
    )
    return make_model(
        section, vocab_size=12, eos_token_id=1, pad_token_id=0, context_tokens=32, seed=seed
    )


def trainer_of(model: PreTrainedModel | None = None, **changes: Any) -> PolicyTrainer:
    """Return a trainer at version 0."""
    return PolicyTrainer(model or policy(), CONFIG.model_copy(update=changes), seed=3, steps=6)


def trees_of(version: int) -> list[Tree]:
    """Return two groups of four that differ from version to version."""
    draw = np.random.default_rng(version)
    trees: list[Tree] = []
    for name in "ab":
        tree = Tree(Task(prompt="q", id=name))
        prompt = tree.add(Node(parent=None, source="prompt", token_ids=(2, 3), turn=0))
        for sample in range(4):
            ids = tuple(draw.integers(2, 12, 3 + sample).tolist())
            node = Node(
                parent=prompt,
                source="sampled",
                token_ids=ids,
                turn=0,
                logprobs=(-2.4,) * len(ids),
                versions=(version,) * len(ids),
            )
            tree.end(Leaf(node=tree.add(node), outcome=Finished(float(sample)), sample=sample))
        trees.append(tree)
    return trees


def run(trainer: PolicyTrainer, steps: int) -> None:
    """Take so many steps."""
    for _ in range(steps):
        trainer.step(trees_of(trainer.version))


def everything(trainer: PolicyTrainer) -> dict[str, Tensor]:
    """Return a copy of the weights and of the optimiser's state."""
    tensors = dict(trainer.weights()) | trainer.optimizer.state() | trainer.optimizer.weights()
    if trainer.ema is not None:
        tensors |= {f"ema.{name}": value for name, value in trainer.ema.state().items()}
    return {name: value.clone() for name, value in tensors.items()}


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Assert two sets of tensors equal bit for bit."""
    assert found.keys() == expected.keys()
    different = [name for name, value in expected.items() if not torch.equal(found[name], value)]
    assert not different


def draws() -> Sequence[float]:
    """Return the next numbers of numpy's and torch's global generators.

    beartype, which checks types in tests, draws from Python's; that one has a test of its own.
    """
    return (float(np.random.rand()), float(torch.rand(())))


def test_random_states_survive_json() -> None:
    state = json.loads(json.dumps(random_state()))
    expected = (random.random(), *draws())
    set_random_state(state)
    assert (random.random(), *draws()) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path: Path, tied: bool) -> None:
    whole = trainer_of(policy(tied=tied))
    run(whole, 4)
    first = trainer_of(policy(tied=tied))
    run(first, 2)
    samplers = {"tasks": {"position": 16}}
    made = save(tmp_path, first, samplers=samplers)
    expected = draws()
    second = trainer_of(policy(seed=9, tied=tied))
    found = load(made, second)
    assert found == samplers
    assert (second.version, second.optimizer.updates) == (2, first.optimizer.updates)
    assert draws() == expected
    run(second, 2)
    assert_equal(everything(second), everything(whole))
    assert (second.version, second.optimizer.updates) == (whole.version, 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bfloat16"},
        {"lora": LoraSection(rank=2, dropout=0.3), "gradient_checkpointing": True},
        {"lora": LoraSection(rank=2), "precision": "bfloat16"},
        {"ema": EmaSection(decay=0.7), "lora": LoraSection(rank=2)},
        {"ema": EmaSection(decay=0.7), "precision": "bfloat16"},
        {"optimizer": AdamWSection(learning_rate=1e-2, warmup_steps=3, decay="cosine")},
    ],
)
def test_so_is_one_with_everything_a_trainer_may_keep(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    whole = trainer_of(**changes)
    run(whole, 4)
    torch.manual_seed(0)
    first = trainer_of(**changes)
    run(first, 2)
    made = save(tmp_path, first)
    torch.manual_seed(9)
    second = trainer_of(**changes)
    load(made, second)
    run(second, 2)
    assert_equal(everything(second), everything(whole))


def test_the_average_is_saved_as_a_policy_too(tmp_path: Path) -> None:
    trainer = trainer_of(ema=EmaSection(decay=0.7), lora=LoraSection(rank=2))
    run(trainer, 2)
    made = save(tmp_path, trainer)
    assert has_rights_of_new_files(made)
    judged = load_model(made / "ema", dtype="float32", device="cpu").state_dict()
    assert_equal(dict(judged), trainer.evaluation_weights())
    assert not torch.equal(
        judged["model.layers.0.mlp.up_proj.weight"],
        trainer.weights()["model.layers.0.mlp.up_proj.weight"],
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"precision": "bfloat16"}, "tensors 'lm_head.weight' is 'float32"),
        ({"lora": LoraSection()}, "is None there"),
        ({"ema": EmaSection()}, "without ema, but the config has learn.ema"),
    ],
)
def test_a_checkpoint_of_another_trainer_is_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    made = save(tmp_path, trainer_of())
    trainer = trainer_of(policy(seed=1), **changes)
    before = everything(trainer)
    with pytest.raises(ConfigError, match=named):
        load(made, trainer)
    assert_equal(everything(trainer), before)


def test_a_checkpoint_is_a_model_folder(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    trainer = trainer_of()
    run(trainer, 1)
    checkpoints = CheckpointManager(folder=tmp_path, keep=1, tokenizer=tokenizer)
    made = checkpoints.save(trainer, samplers={"tasks": 8}, files={"more.bin": b"\x00more"})
    assert checkpoints.read("more.bin") == b"\x00more"
    assert checkpoints.read("other.bin") is None
    assert made.name == "step-000001"
    model = load_model(made, dtype="float32", device="cpu")
    assert_equal(dict(model.state_dict()), trainer.weights())
    assert load_tokenizer(made).convert_tokens_to_ids(["b"]) == [1]


def test_a_run_saves_restores_and_keeps_the_newest(tmp_path: Path) -> None:
    trainer = trainer_of()
    checkpoints = CheckpointManager(folder=tmp_path / "new", keep=2, tokenizer=_NoTokenizer())
    assert checkpoints.restore(trainer) == {}
    assert checkpoints.oldest() == {}
    for step in (9, 10, 11):
        trainer.version = step
        checkpoints.save(trainer, samplers={"tasks": {"position": 10 * step}}, files={})
    names = [path.name for path in sorted(checkpoints.folder.iterdir())]
    assert names == ["step-000010", "step-000011"]
    assert latest(checkpoints.folder) == checkpoints.folder / "step-000011"
    other = trainer_of()
    assert checkpoints.restore(other) == {"tasks": {"position": 110}}
    assert other.version == 11


class _NoTokenizer:
    """A tokenizer without files."""

    def save_pretrained(self, save_directory: Path) -> None:
        """Write nothing."""


def test_the_newest_is_the_one_with_the_highest_step(tmp_path: Path) -> None:
    assert latest(tmp_path / "absent") is None
    for name in ("step-1000000", "step-999999", "step-nonsense", ".step-2000000.partial"):
        (tmp_path / name).mkdir()
    assert latest(tmp_path) == tmp_path / "step-1000000"


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    trainer = trainer_of()
    (tmp_path / ".step-000007.partial").mkdir()  # of a run that was killed later, and went back
    for position in (1, 2):
        run(trainer, 1)
        trainer.version = 5
        made = save(tmp_path, trainer, samplers={"p": position})
    assert load(made, trainer_of()) == {"p": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]


def test_a_crash_while_replacing_is_mended(tmp_path: Path) -> None:
    trainer = trainer_of()
    trainer.version = 5
    made = save(tmp_path, trainer)
    made.rename(tmp_path / ".step-000005.replaced")
    assert latest(tmp_path) == made
    (tmp_path / ".step-000005.replaced").mkdir()
    assert latest(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]


@contextmanager
def files_of_at_most(size_bytes: int) -> Generator[None]:
    """Let the kernel refuse to write more than so much into one file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# The model is 14 kB, the optimiser 27 kB, the state 21 kB: each of them is the one that fails.
@pytest.mark.parametrize("room_bytes", [1_000, 10_000, 18_000, 24_000])
def test_the_old_checkpoint_survives_a_full_disk(tmp_path: Path, room_bytes: int) -> None:
    trainer = trainer_of()
    run(trainer, 1)
    old = save(tmp_path, trainer)
    expected = everything(trainer)
    run(trainer, 1)
    with (
        files_of_at_most(room_bytes),
        pytest.raises(LearnError, match=r"step-000002 could not be written.*Free space"),
    ):
        save(tmp_path, trainer)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    resumed = trainer_of()
    load(old, resumed)
    assert resumed.version == 1
    assert_equal(everything(resumed), expected)


def test_samplers_that_are_no_json_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path, trainer_of(), samplers={"a": {1}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(
    tmp_path: Path, name: str, damage: str
) -> None:
    made = save(tmp_path, trainer_of())
    path = made / name
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    match damage:
        case "flip":
            path.write_bytes(blob)
        case "cut":
            path.write_bytes(blob[:-1])
        case _:
            path.unlink()
    trainer = trainer_of(policy(seed=1))
    before = everything(trainer)
    with pytest.raises(LearnError, match=f"{name} is damaged.*remove step-000000"):
        load(made, trainer)
    assert_equal(everything(trainer), before)


def test_a_damaged_or_foreign_manifest_is_an_error(tmp_path: Path) -> None:
    made = save(tmp_path, trainer_of())
    manifest = made / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[:-10])
    with pytest.raises(LearnError, match=r"manifest\.json is damaged"):
        load(made, trainer_of())
    manifest.write_text(json.dumps(json.loads(text) | {"format": 99}))
    with pytest.raises(LearnError, match="has format 99"):
        load(made, trainer_of())


def test_a_checkpoint_of_another_model_names_the_first_key_that_differs(tmp_path: Path) -> None:
    made = save(tmp_path, trainer_of())
    with pytest.raises(ConfigError, match="config 'hidden_size' is 16 there and 32 here"):
        load(made, trainer_of(policy(hidden_size=32)))
    resized = policy()
    resized.resize_token_embeddings(14)
    with pytest.raises(ConfigError, match="config 'vocab_size' is 12 there and 14 here"):
        load(made, trainer_of(resized))


def test_a_new_policy_is_a_function_of_its_seed_and_touches_no_global_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    one, other = policy(seed=1), policy(seed=1)
    assert torch.equal(torch.rand(()), expected)
    assert_equal(dict(one.state_dict()), dict(other.state_dict()))
    assert not torch.equal(
        one.state_dict()["lm_head.weight"], policy().state_dict()["lm_head.weight"]
    )


def test_every_key_of_a_new_policy_reaches_the_model() -> None:
    section = MakePolicySection(
        hidden_size=24,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=6,
        intermediate_size=40,
        tie_embeddings=False,
    )
    model = make_model(
        section, vocab_size=30, eos_token_id=4, pad_token_id=5, context_tokens=77, seed=0
    )
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["lm_head.weight"] == (30, 24)
    assert shapes["model.layers.2.self_attn.k_proj.weight"] == (12, 24)
    assert shapes["model.layers.2.self_attn.q_proj.weight"] == (24, 24)
    assert shapes["model.layers.2.mlp.up_proj.weight"] == (40, 24)
    assert "model.layers.3.mlp.up_proj.weight" not in shapes
    assert not model.config.tie_word_embeddings
    assert (model.config.eos_token_id, model.config.pad_token_id) == (4, 5)
    assert model.config.max_position_embeddings == 77
    with pytest.raises(ConfigError, match="heads=4 is not a multiple of kv_heads=3"):
        make_model(
            section.model_copy(update={"kv_heads": 3}),
            vocab_size=30,
            eos_token_id=4,
            pad_token_id=5,
            context_tokens=77,
            seed=0,
        )


def test_a_folder_without_a_model_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.path=.* cannot be read"):
        load_model(tmp_path, dtype="float32", device="cpu")
    with pytest.raises(ConfigError, match=r"policy\.path=.* cannot be read"):
        load_tokenizer(tmp_path)


def test_weights_that_are_cut_off_are_told_with_their_folder(tmp_path: Path) -> None:
    section = MakePolicySection(hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16)
    model = make_model(
        section, vocab_size=30, eos_token_id=4, pad_token_id=5, context_tokens=77, seed=0
    )
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=rf"policy\.path='{tmp_path}' cannot be read by Auto"):
        load_model(tmp_path, dtype="float32", device="cpu")

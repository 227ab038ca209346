"""Training after the prompt without a hint, instead of the one with it and beside it.

Mutants seen caught: the bare prompt cut short; a patch that follows the hint; later contexts lost;
another prompt taken for a fault of the engine; a second loss of another sign, after the own prompt,
as a sum over tokens, without their weights, without a gradient, or over trajectories with credit
alone; all second losses in one part; a policy that sees both prompts; noise that the bare prompt
changes; the bare prompt lost in the store or in the fingerprint, or longer than the other.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentrl.config.learn import GapAlarmSection, LearnSection
from agentrl.config.learning.correction import NoCorrection
from agentrl.config.learning.hint import AnyHint, DistilledHint, RemovedHint
from agentrl.config.load import load_config
from agentrl.config.section import CustomMethod
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import Action, Observation, Patch, Step
from agentrl.errors import ConfigError, LearnError
from agentrl.events.history import fingerprint
from agentrl.learn.advantages.nudge import read_strategies
from agentrl.learn.contexts import contexts
from agentrl.learn.hint import HintTraining, apply_hints, make_unhinted_rows, remove_hint
from agentrl.learn.micro_batch import CreditedSample
from agentrl.learn.sample import TrainingGroup, TrainingSample, groups_of, sample_of
from agentrl.learn.trainer import PolicyTrainer
from agentrl.message import Message
from agentrl.policy import Completion, GenerateRequest
from agentrl.rollout.episode import EpisodeRunner
from agentrl.run import build
from agentrl.store.codec import pack, unpack
from agentrl.task import Task
from agentrl.trajectory import Failed, Finished, Leaf, Node, Tree
from agentrl_envs.strategies import NudgedEnv
from tests.support.learning import model_of, trees_of
from tests.support.said_turns import saying, text_of
from tests.unit.chat.test_patch import WritingLetters
from tests.unit.rollout.test_rollout import TASK, Echo

BARE, HINT = (2, 3), (2, 3, 7, 8)


def tree_of(
    *prompts: tuple[Sequence[int], ...], turns: int = 2, seed: int = 0, group: str = "t"
) -> Tree:
    """Return trajectories with these prompts, of which each withdraws the one before it."""
    random = np.random.default_rng(seed)
    tree = Tree(Task(prompt="q", id=group))
    for sample, parts in enumerate(prompts):
        at = None
        for part in parts:
            withdraws = 0 if at is None else len(tree.context(at))
            node = Node(
                parent=at, source="prompt", token_ids=tuple(part), turn=0, withdraws=withdraws
            )
            at = tree.share(node)
        for turn in range(turns):
            count = int(random.integers(1, 5))
            at = tree.add(
                Node(
                    parent=at,
                    source="sampled",
                    token_ids=tuple(random.integers(2, 12, count).tolist()),
                    turn=turn,
                    logprobs=tuple((-2.0 + 0.3 * random.standard_normal(count)).tolist()),
                    versions=(0,) * count,
                )
            )
            at = tree.add(Node(parent=at, source="tool", token_ids=(4, 5), turn=turn))
        tree.end(Leaf(node=at, outcome=Finished(float(sample % 3)), sample=sample))
    return tree


def with_reward(tree: Tree, reward: float) -> Tree:
    """Return the tree, all of whose trajectories have the same reward."""
    even = Tree(Task(prompt="q", id="even"))
    for node in tree.nodes:
        even.add(node)
    for leaf in tree.leaves:
        even.end(replace(leaf, outcome=Finished(reward)))
    return even


def train(
    hint: AnyHint | None, *trees: Tree, **keys: object
) -> tuple[list[Tensor], dict[str, float]]:
    """Return the weights after a step, and its metrics."""
    model = model_of()
    section = LearnSection(hint=hint, optimizer={"learning_rate": 1e-3}, **keys)  # pyright: ignore[reportArgumentType]
    metrics = PolicyTrainer(model, section, seed=0).step(trees)
    return [parameter.detach() for parameter in model.parameters()], metrics


def assert_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=0)


MIXED = [(BARE,), (BARE, HINT), (BARE,), (BARE, HINT)]


@pytest.mark.parametrize("layout", ["padded", "tree"])
def test_a_removed_hint_trains_as_if_the_bare_prompt_had_been_sampled_after(layout: str) -> None:
    removed, seen = train(RemovedHint(), tree_of(*MIXED), layout=layout)
    bare, expected = train(None, tree_of(*[(BARE,)] * 4), layout=layout)
    kept, _ = train(None, tree_of(*MIXED), layout=layout)
    hinted, _ = train(None, tree_of((BARE,), (HINT,), (BARE,), (HINT,)), layout=layout)
    assert_same(removed, bare)
    assert_same(kept, hinted)
    assert any(not torch.allclose(a, b, atol=1e-4) for a, b in zip(removed, kept, strict=True))
    for name in ("loss", "entropy", "correction/mean", "engine_gap/mean_abs"):
        assert seen[name] == pytest.approx(expected[name], abs=1e-6), name


def mean_logprob(model: torch.nn.Module, sample: TrainingSample, prompt: Sequence[int]) -> Tensor:
    """Return the mean log-prob of a sample's tokens after a prompt, by a plain forward pass."""
    said = int(sample.sampled.argmax())
    ids = torch.tensor([*prompt, *sample.token_ids[said:].tolist()])
    logs = model(input_ids=ids[None]).logits[0].log_softmax(dim=-1)
    places = torch.tensor(np.flatnonzero(sample.mask[said:]) + len(prompt))
    return logs[places - 1, ids[places]].mean()


def test_the_second_loss_is_the_published_one() -> None:
    """coefficient x mean over trajectories of -A / |o| x sum of log pi(token | bare prompt)."""
    tree, coefficient = tree_of(*MIXED), 0.7
    plain_keys = {"correction": NoCorrection(), "aggregation": "seq-mean-token-mean"}
    hint = DistilledHint(coefficient=coefficient)
    _, without = train(None, tree, **plain_keys)
    _, metrics = train(hint, tree, **plain_keys)
    model = model_of()
    rewards = np.array([0.0, 1.0, 2.0, 0.0])
    credit = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    (group,) = groups_of([tree])
    first, second = torch.zeros(()), torch.zeros(())
    for sample, advantage, prompts in zip(group.samples, credit, MIXED, strict=True):
        # On policy the clipped loss has the gradient of -A x log-prob.
        own = mean_logprob(model, sample, prompts[-1])
        first = first - advantage * (own - own.detach() + 1) / 4
        second = second - advantage * mean_logprob(model, sample, BARE) / 4
    total = first + coefficient * second
    total.backward()
    norm = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None) ** 0.5
    assert metrics["loss"] - without["loss"] == pytest.approx(coefficient * second.item(), abs=1e-5)
    assert metrics["loss"] == pytest.approx(total.item(), abs=1e-5)
    assert metrics["grad/norm"] == pytest.approx(float(norm), rel=1e-4)
    assert metrics["tokens/trained"] == without["tokens/trained"]
    assert metrics["engine_gap/mean_abs"] == without["engine_gap/mean_abs"]


def test_trajectories_without_credit_count_in_the_mean() -> None:
    """Two groups of which one has equal rewards: its second losses are zeros, not left out."""
    tree = tree_of(*MIXED)
    even = with_reward(tree, 1.0)
    keys = {"aggregation": "seq-mean-token-mean", "correction": NoCorrection()}
    shares = [
        train(DistilledHint(), *trees, **keys)[1]["loss"] - train(None, *trees, **keys)[1]["loss"]
        for trees in ([tree], [tree, even])
    ]
    assert shares[0] != 0
    assert shares[1] == pytest.approx(shares[0] / 2, rel=1e-3)


def test_every_trajectory_has_its_second_loss_once_per_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = tree_of(*MIXED[:3], *MIXED)
    seen: list[tuple[int, int]] = []
    original = PolicyTrainer._pass_unhinted  # pyright: ignore[reportPrivateUsage]

    def watch(self: PolicyTrainer, rows: Sequence[CreditedSample], count: int, tally: object):
        seen.extend((row.sample.sample, count) for row in rows)
        return original(self, rows, count, tally)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(PolicyTrainer, "_pass_unhinted", watch)
    train(DistilledHint(), tree, minibatches=3, epochs=2)
    assert sorted(sample for sample, _ in seen) == sorted([*range(7)] * 2)
    assert {count for _, count in seen} == {2, 3}


def test_a_second_loss_trains_beside_rows_without_credit() -> None:
    """Eight optimiser steps of a row each: four rows have credit, and of the four second losses one
    falls on a step whose row has none."""
    tree = tree_of(*MIXED)
    hint = CustomMethod(function=f"{__name__}:distill_credited")
    _, metrics = train(hint, tree, with_reward(tree, 1.0), minibatches=8)
    assert metrics["optimizer/updates"] == 5
    assert metrics["optimizer/skipped"] == 3 / 8


def test_a_second_loss_needs_no_hint_and_a_coefficient() -> None:
    (tree,) = trees_of(1)
    (group,) = groups_of([tree])
    (scored,) = apply_hints([group], lambda sample: HintTraining())
    assert all(not sample.hint_coefficient for sample in scored.samples)
    with_hint, _ = train(CustomMethod(function=f"{__name__}:keep_all"), tree)
    without, _ = train(None, tree)
    assert_same(with_hint, without)
    _, metrics = train(DistilledHint(), tree)
    assert metrics["hint/logprob"] < 0


def keep_all(sample: TrainingSample) -> HintTraining:
    return HintTraining()


def distill_credited(sample: TrainingSample) -> HintTraining:
    return HintTraining(coefficient=0.0 if sample.task_id == "even" else 0.1)


def lose(sample: TrainingSample) -> HintTraining:
    return HintTraining(coefficient=float("nan"))


def test_a_coefficient_that_is_no_number_is_an_error() -> None:
    with pytest.raises(LearnError, match=r"task 't' sample 0: learn\.hint gives .* nan"):
        train(CustomMethod(function=f"{__name__}:lose"), tree_of(*MIXED))


def test_weights_of_tokens_count_in_the_second_loss() -> None:
    (group,) = groups_of([tree_of((BARE, HINT))])
    (sample,) = group.samples
    weights = np.where(sample.turns == 0, 2.0, 0.0)
    row = CreditedSample(
        replace(sample, weights=weights, hint_coefficient=0.5), np.ones(len(weights))
    )
    (second,) = make_unhinted_rows(row)
    found = second.advantages[second.sample.mask]
    turns = second.sample.turns[second.sample.mask]
    assert found == pytest.approx(np.where(turns == 0, 2.0, 0.0) * 0.5 / sample.sampled_tokens)
    assert make_unhinted_rows(replace(row, advantages=np.zeros(len(weights)))) == []


def test_another_prompt_is_no_fault_of_the_engine() -> None:
    """The alarm compares what only numerics may change; hints change more."""
    model = model_of()
    tree = tree_of((BARE, HINT), (BARE, HINT), (BARE, HINT))
    honest = Tree(tree.task)
    for at, node in enumerate(tree.nodes):
        logprobs = node.logprobs
        if node.source == "sampled":
            context = tree.tokens(at)
            with torch.no_grad():
                logs = model(input_ids=torch.tensor(context)[None]).logits[0].log_softmax(-1)
            first = len(context) - len(node.token_ids)
            places = range(first, len(context))
            logprobs = tuple(logs[place - 1, context[place]].item() for place in places)
        honest.add(replace(node, logprobs=logprobs))
    for leaf in tree.leaves:
        honest.end(leaf)
    alarm = GapAlarmSection(action="stop", mean_abs=1e-3)
    _, kept = train(None, honest, gap_alarm=alarm)
    assert kept["engine_gap/age0_max"] < 1e-4
    _, removed = train(RemovedHint(), honest, gap_alarm=alarm)
    assert removed["engine_gap/mean_abs"] > 1e-2
    assert removed["engine_gap/age0_fraction"] == 0
    assert removed["correction/mean"] != 1.0


# Contexts.


class Hinting(Echo):
    """Opens with a hint; may begin anew after its first turn, or patch that."""

    gives_hints = True

    def __init__(self, unhinted: str = "ab", after: str = "") -> None:
        super().__init__()
        self.unhinted, self.after = unhinted, after

    async def reset(self, **options: object) -> tuple[Observation, dict[str, object]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        del options
        bare = (Message("user", self.unhinted),)
        return Observation((Message("user", "ab?c"),), tools=(), unhinted=bare), {}

    async def step(self, action: Action) -> Step:
        if action.text == "anew":
            return Observation((Message("user", "cd"),), tools=(), anew=True), 0.1, False, False, {}
        answer = await super().step(action)
        if action.text == "bad":
            return (*answer[:4], {"patch": Patch(Action("good"))})
        return answer


async def play(
    *turns: str, seen: list[str] | None = None, env: Echo | None = None
) -> tuple[Tree, Leaf]:
    episode = EpisodeRunner(
        env=env or Hinting(),
        engine=ScriptedEngine(saying(*turns, seen=seen)),
        chat=WritingLetters(),
        tree=Tree(TASK),
        sample=0,
        seed=1,
    )
    leaf = await episode.run()
    episode.tree.end(leaf)
    return episode.tree, leaf


def texts(sample: TrainingSample) -> list[tuple[str, str]]:
    """Return each context, and what trains in it."""
    return [
        (text_of(c.sample.token_ids), text_of(c.sample.token_ids[c.sample.mask]))
        for c in contexts(sample)
    ]


async def test_the_policy_sees_the_hint_and_the_record_has_both() -> None:
    seen: list[str] = []
    tree, leaf = await play("hi", "done", seen=seen)
    assert seen == ["ab?c>", "ab?c>hi.ok>"]
    assert isinstance(leaf.outcome, Finished)
    sample = sample_of(tree, leaf)
    assert sample is not None
    assert text_of(sample.token_ids) == "ab>ab?c>hi.ok>done."
    assert texts(sample) == [("ab?c>hi.ok>done.", "hi.done.")]
    bare = remove_hint(sample)
    assert bare.other_prompt
    assert not sample.other_prompt
    assert texts(bare) == [("ab>hi.ok>done.", "hi.done.")]
    assert bare.token_ids is sample.token_ids
    assert remove_hint(bare) is bare


async def test_later_contexts_keep_what_they_follow() -> None:
    tree, leaf = await play("hi", "anew", "done")
    sample = sample_of(tree, leaf)
    assert sample is not None
    assert texts(remove_hint(sample)) == [("cd>done.", "done."), ("ab>hi.ok>anew.", "hi.anew.")]
    tree, leaf = await play("bad", "done")
    sample = sample_of(tree, leaf)
    assert sample is not None
    kept, bare = texts(sample), texts(remove_hint(sample))
    assert [trained for _, trained in kept] == ["done.", "bad."]
    assert bare == [(text.replace("ab?c>", "ab>"), trained) for text, trained in kept]
    assert "good" in bare[0][0]


async def test_samples_without_a_hint_stay_as_they_are() -> None:
    tree, leaf = await play("hi", "done", env=Echo())
    plain = sample_of(tree, leaf)
    assert plain is not None
    assert remove_hint(plain) is plain
    (group,) = groups_of([tree_of((BARE, HINT), turns=0)])
    assert remove_hint(group.samples[0]) is group.samples[0]


async def test_sampling_is_that_of_the_prompt_with_the_hint() -> None:
    """The other prompt changes no noise: it is no context that anything was sampled in."""
    seeds: list[int] = []

    class Noting(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Completion:
            seeds.append(request.seed)
            return await super().generate(request)

    for env in (Echo(), Hinting()):
        episode = EpisodeRunner(
            env=env,
            engine=Noting(saying("hi", "done")),
            chat=WritingLetters(),
            tree=Tree(TASK),
            sample=0,
            seed=1,
        )
        await episode.run()
    assert seeds == [1, 1, 1, 1]


async def test_a_bare_prompt_that_is_longer_fails_the_trajectory() -> None:
    _, leaf = await play("done", env=Hinting(unhinted="abcdefgh"))
    assert isinstance(leaf.outcome, Failed)
    assert leaf.outcome.kind == "env"
    assert "9 tokens without its hint and 5 with it" in leaf.outcome.error


PARTS = st.lists(st.sampled_from(["hi", "anew", "bad"]), max_size=4)


@given(PARTS)
async def test_every_token_trains_once_without_the_hint(turns: list[str]) -> None:
    tree, leaf = await play(*turns, "done")
    sample = sample_of(tree, leaf)
    assert sample is not None
    found = contexts(remove_hint(sample))
    trained = np.concatenate([c.places[c.sample.mask] for c in found])
    assert sorted(trained.tolist()) == np.flatnonzero(sample.mask).tolist()
    expected = [(text.replace("ab?c>", "ab>"), said) for text, said in texts(sample)]
    assert texts(remove_hint(sample)) == expected


def test_an_opening_survives_the_store_and_is_in_the_fingerprint() -> None:
    messages = (Message("user", "abc"),)
    plain, hinted = Observation(messages), Observation(messages, unhinted=(Message("user", "a"),))
    assert unpack(pack((plain, hinted))) == (plain, hinted)
    assert fingerprint(plain) != fingerprint(hinted)


# The environment, and at load.


async def test_a_nudged_prompt_comes_with_its_bare_one() -> None:
    env = NudgedEnv(env="agentrl.testing:ScriptedEnv", strategies=["by hand"], bare=0.0)
    task = next(iter(env.tasks("train")))
    hinted, _ = await env.reset(seed=3, options={"task": task, "sample": 0})
    bare, _ = await env.inner.reset(seed=3, options={"task": task, "sample": 0})
    await env.close()
    assert hinted.unhinted == bare.messages != hinted.messages
    assert bare.unhinted is None


def test_strategies_are_told_apart_where_hints_are_removed() -> None:
    (group,) = groups_of([tree_of((BARE, HINT), (BARE,), (BARE, HINT))])
    samples = tuple(
        replace(remove_hint(sample), components={"strategy": float(len(sample.jumps))})
        for sample in group.samples
    )
    assert read_strategies(TrainingGroup("t", samples)) == [1, 0, 1]


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("learn: {hint: {name: remove}, correction: {name: none}}", r"learn\.hint\.name is remove"),
        ("learn: {hint: {name: distill}}\nrollout: {images: 2}", r"rollout\.images is 2"),
        (
            "learn: {hint: {name: distill, coefficient: 0}}",
            r"learn\.hint\.coefficient is 0",
        ),
    ],
)
def test_what_cannot_train_is_refused(tmp_path: Path, keys: str, fault: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"env: {{id: reasoning/ChainSum-v0}}\n{keys}\n")
    with pytest.raises(ConfigError, match=fault):
        load_config(path)


@pytest.mark.parametrize("name", ["remove", "distill"])
def test_an_environment_without_hints_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"env: {{id: reasoning/ChainSum-v0}}\nlearn: {{hint: {{name: {name}}}}}\n")
    config = load_config(path)
    with pytest.raises(
        ConfigError, match=rf"learn\.hint\.name is {name}, .*ChainSum-v0 gives none"
    ):
        build.check_reports(config, build.build_env_factory(config, plays=False)())
    build.check_reports(config, Hinting())

"""The parts of the benchmark beside TRL that need no TRL: the game, the batch, the arithmetic.

Mutants seen caught: guesses that cost nothing; a fifth guess that counts; higher and lower swapped;
a player whose low or high end does not move; a host who goes on after "correct", or after the last
guess; numbers that repeat within fifteen rounds; a mask inverted; an error without its root; a seed
not used; a host who waits in rounds held out, or never; a tail of 2 per mille; a mean over all
steps, over fewer steps than asked for, or never reached; training that includes the rollout; noise
forgotten.
"""

import asyncio
import itertools

import numpy as np
import pytest

from benchmarks.beside_trl import game
from benchmarks.beside_trl.batch import drawn_batch, relative_error
from benchmarks.beside_trl.race import Turn, measurements, reached
from benchmarks.beside_trl.setup import StepRecord


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        ([], 0.0),
        (["correct"], 1.0),
        (["higher", "correct"], 0.85),
        (["lower", "higher", "lower", "correct"], 0.55),
        (["lower", "higher", "lower", "higher"], 0.0),
        (["lower", "higher", "lower", "higher", "correct"], 0.0),
    ],
)
def test_a_game_is_worth_less_with_every_guess(answers: list[str], reward: float) -> None:
    assert game.reward(answers) == pytest.approx(reward)


@pytest.mark.parametrize("rules", [game.SHORT, game.LONG])
def test_the_player_who_halves_always_finds_the_number(rules: game.Rules) -> None:
    rounds = [n for n in range(200) if game.drawn(f"style {n}") % 2 == 0]
    assert len(rounds) > 60
    for number in rounds:
        answers, guesses = list[str](), list[int]()
        while "correct" not in answers and len(guesses) < rules.most_guesses:
            guesses.append(game.player_guess(number, guesses, answers, rules))
            answers.append(game.answer(game.secret(number, rules), guesses[-1]))
        assert answers[-1] == "correct"


def test_the_host_answers_no_more_than_the_guesses_there_are() -> None:
    host = game.Host(3)
    wrong = game.secret(3) % game.SHORT.highest + 1
    said = [host.guess(wrong) for _ in range(game.SHORT.most_guesses + 1)]
    assert said[-1] == "the game is over"
    assert len(host.answers) == game.SHORT.most_guesses
    right = game.Host(3)
    assert right.guess(game.secret(3)) == "correct"
    assert right.guess(wrong) == "the game is over"
    assert right.answers == ["correct"]


def test_rounds_in_a_row_have_every_number_once() -> None:
    assert sorted(map(game.secret, range(40, 55))) == list(range(1, 16))


async def test_a_waiting_host_answers_as_late_as_drawn_but_not_in_rounds_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    trained, heldout = game.WaitingHost(7), game.WaitingHost(game.HELDOUT_ROUND)
    assert await trained.guess(game.secret(7, game.LONG)) == "correct"
    assert len(slept) == 1
    assert slept[0] in {game.latency_s(call) for call in range(50)}
    assert await heldout.guess(32) == "lower"
    assert len(slept) == 1


def test_latencies_have_the_median_and_the_tail_that_the_benchmark_names() -> None:
    latencies = [game.latency_s(call) for call in range(4000)]
    assert np.median(latencies) == pytest.approx(0.5, rel=0.1)
    # 2 %, and a thousandth of the lognormal ones themselves.
    assert np.mean(np.array(latencies) > 20) == pytest.approx(0.021, abs=0.006)
    assert np.std(np.log([s for s in latencies if s < 20])) == pytest.approx(1.2, rel=0.05)
    assert latencies[:9] == [game.latency_s(call) for call in range(9)]


def test_answers_point_to_the_number() -> None:
    assert [game.answer(5, guess) for guess in (4, 5, 6)] == ["higher", "correct", "lower"]


def test_a_batch_has_groups_of_one_prompt_and_masks_of_the_policys_parts() -> None:
    groups = drawn_batch(100, seed=1)
    for group in groups:
        assert len({said.prompt for said in group}) == 1
        for said in group:
            assert len(said.mask) == len(said.completion)
            runs = [(kind, len(list(run))) for kind, run in itertools.groupby(said.mask)]
            assert runs == [(1 - i % 2, len(part)) for i, part in enumerate(said.parts)]
            assert said.mask[0] == said.mask[-1] == 1
    assert drawn_batch(100, seed=1) == groups != drawn_batch(100, seed=2)


def test_the_relative_error_is_that_of_all_arrays_together() -> None:
    theirs = [np.array([3.0]), np.array([0.0, 4.0])]
    assert relative_error(theirs, theirs) == 0
    assert relative_error([np.array([3.0]), np.array([0.5, 4.0])], theirs) == pytest.approx(0.1)


def test_a_reward_is_reached_by_the_mean_of_the_last_steps() -> None:
    assert reached([0.0, 1.0, 0.0, 1.0, 1.0], 0.6, over=3) == 4
    assert reached([0.9, 0.0, 0.0], 0.3, over=3) == 3
    assert reached([1.0, 1.0], 0.5, over=3) is None
    assert reached([0.1] * 9, 0.5, over=3) is None


def test_a_step_is_its_rollout_and_its_training() -> None:
    record = StepRecord(
        tokens=60, reward=0.5, cpu_s=5.0, wall_s=10.0, rollout_cpu_s=2.0, rollout_wall_s=6.0
    )
    turns = [Turn({"ours": record}, noisy=True)]
    found = {
        part: measurements(turns, "ours", part=part)[0] for part in ("step", "rollout", "training")
    }
    assert {part: (one.cpu_s, one.wall_s) for part, one in found.items()} == {
        "step": (5.0, 10.0),
        "rollout": (2.0, 6.0),
        "training": (3.0, 4.0),
    }
    assert all(one.work == 60 and one.noisy for one in found.values())

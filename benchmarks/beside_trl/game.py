"""What is played: a guessing game with a tool, and a single turn of words. The same for both.

Imports nothing but the standard library, because the peer's process has no agentrl.
"""

import asyncio
import hashlib
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

COST = 0.15
"""What every guess after the first one takes off the reward."""
HELDOUT_ROUND = 5_000_000
"""The first round that nobody trains on."""
MEDIAN_S, SIGMA = 0.5, 1.2
"""Of the lognormal time that a waiting host takes to answer."""
LATE_SHARE, LATE_S = 0.02, 20.0
"""Share of its answers that take so much longer."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How large a number may be, and how many guesses there are."""

    highest: int
    most_guesses: int

    @property
    def system(self) -> str:
        """Return what the policy is told of the game."""
        return (
            "You play a guessing game: find the whole number that the host thinks of. Call the "
            "tool with a guess, and the host answers whether the number is higher, lower or "
            f"correct. You have {self.most_guesses} guesses, and every one after the first costs "
            "a part of the reward. When the host says correct, or when no guess is left, end the "
            "game with a short message."
        )


SHORT, LONG = Rules(15, 4), Rules(31, 5)
"""With as many guesses as halving needs at most."""
HIGHER, LOWER, CORRECT = "higher", "lower", "correct"
ANSWERS = (HIGHER, LOWER, CORRECT)

WORDS = (
    "Write a short note to a friend about the weather of today, about what you can see from your "
    "window and about what you would like to do in the evening. Note number {number}."
)


@dataclass(slots=True)
class Round:
    """One round of the game: its number, and what the host has answered."""

    rules: ClassVar[Rules] = SHORT
    round: int = 0
    answers: list[str] = field(default_factory=list[str])

    def _answer(self, number: int) -> str:
        """Answer a guess, and note it."""
        if CORRECT in self.answers or len(self.answers) >= self.rules.most_guesses:
            return "the game is over"
        self.answers.append(answer(secret(self.round, self.rules), number))
        return self.answers[-1]


class Host(Round):
    """Knows the number of one round and answers guesses at once."""

    def guess(self, number: int) -> str:
        """Ask the host of the game about a number.

        Args:
            number: The number that you think it is.

        Returns:
            Whether the number of the host is higher or lower than that, or whether it is correct.
        """
        return self._answer(number)


class WaitingHost(Round):
    """A host of the long game that takes its time, except in rounds that are held out."""

    rules = LONG
    wait_share: ClassVar[float] = 1.0
    """Share of its time that it takes."""

    async def guess(self, number: int) -> str:
        """Ask the host of the game about a number.

        Args:
            number: The number that you think it is.

        Returns:
            Whether the number of the host is higher or lower than that, or whether it is correct.
        """
        if self.round < HELDOUT_ROUND:
            await asyncio.sleep(self.wait_share * latency_s(next(_CALLS)))
        return self._answer(number)


_CALLS = itertools.count()


def latency_s(call: int) -> float:
    """Return how long the waiting host takes for the call of this number."""
    drawn = random.Random(call)
    latency = drawn.lognormvariate(math.log(MEDIAN_S), SIGMA)
    return latency + LATE_S if drawn.random() < LATE_SHARE else latency


def secret(round: int, rules: Rules = SHORT) -> int:
    """Return the number the host thinks of: every number once in `highest` rounds in a row.

    So the rounds of one step are about as hard as those of the next one.
    """
    return 1 + 7 * round % rules.highest


def question(round: int, rules: Rules = SHORT) -> str:
    """Return what the host says first; every round has a text of its own."""
    return f"This is round {round}. I have a number from 1 to {rules.highest}. Which one is it?"


def answer(hidden: int, guess: int) -> str:
    """Return what the host says of a guess."""
    if guess == hidden:
        return CORRECT
    return HIGHER if hidden > guess else LOWER


def reward(answers: Sequence[str], rules: Rules = SHORT) -> float:
    """Return what a game is worth: 1 for the first guess, less for later ones, 0 if not found."""
    if CORRECT not in answers[: rules.most_guesses]:
        return 0.0
    return 1.0 - COST * answers.index(CORRECT)


def player_guess(
    round: int, guesses: Sequence[int], answers: Sequence[str], rules: Rules = SHORT
) -> int:
    """Return the next guess of the player that is imitated.

    In half of the rounds it halves what is left, in the others it ignores what it was told: what
    reinforcement learning has to choose between.
    """
    if drawn(f"style {round}") % 2:
        return 1 + drawn(f"guess {round} {len(guesses)}") % rules.highest
    low, high = 1, rules.highest
    for guess, said in zip(guesses, answers, strict=True):
        if said == HIGHER:
            low = max(low, guess + 1)
        elif said == LOWER:
            high = min(high, guess - 1)
    return (low + high) // 2


def wordy_reward(text: str) -> float:
    """Return the share of letters among a text's characters: nearly never the same twice."""
    return sum(character.isalpha() for character in text) / max(len(text), 1)


def drawn(text: str) -> int:
    """Return a number that looks random and is the same for the same text everywhere."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

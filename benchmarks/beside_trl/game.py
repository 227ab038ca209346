"""What is played: a guessing game with a tool, and a single turn of words. The same for both.

Imports nothing but the standard library, because the peer's process has no agentrl.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

HIGHEST = 15
MOST_GUESSES = 4
"""As many as halving needs at most."""
COST = 0.15
"""What every guess after the first one takes off the reward."""

SYSTEM = (
    "You play a guessing game: find the whole number that the host thinks of. Call the tool with a "
    f"guess, and the host answers whether the number is higher, lower or correct. You have "
    f"{MOST_GUESSES} guesses, and every one after the first costs a part of the reward. When the "
    "host says correct, or when no guess is left, end the game with a short message."
)
HIGHER, LOWER, CORRECT = "higher", "lower", "correct"
ANSWERS = (HIGHER, LOWER, CORRECT)

WORDS = (
    "Write a short note to a friend about the weather of today, about what you can see from your "
    "window and about what you would like to do in the evening. Note number {number}."
)


@dataclass(slots=True)
class Host:
    """Knows the number of one round and answers guesses."""

    round: int = 0
    answers: list[str] = field(default_factory=list[str])

    def guess(self, number: int) -> str:
        """Ask the host of the game about a number.

        Args:
            number: The number that you think it is.

        Returns:
            Whether the number of the host is higher or lower than that, or whether it is correct.
        """
        if CORRECT in self.answers or len(self.answers) >= MOST_GUESSES:
            return "the game is over"
        self.answers.append(answer(secret(self.round), number))
        return self.answers[-1]


def secret(round: int) -> int:
    """Return the number the host thinks of: every number once in `HIGHEST` rounds in a row.

    So the rounds of one step are about as hard as those of the next one.
    """
    return 1 + 7 * round % HIGHEST


def question(round: int) -> str:
    """Return what the host says first; every round has a text of its own."""
    return f"This is round {round}. I have a number from 1 to {HIGHEST}. Which one is it?"


def answer(hidden: int, guess: int) -> str:
    """Return what the host says of a guess."""
    if guess == hidden:
        return CORRECT
    return HIGHER if hidden > guess else LOWER


def reward(answers: Sequence[str]) -> float:
    """Return what a game is worth: 1 for the first guess, less for later ones, 0 if not found."""
    if CORRECT not in answers[:MOST_GUESSES]:
        return 0.0
    return 1.0 - COST * answers.index(CORRECT)


def player_guess(round: int, guesses: Sequence[int], answers: Sequence[str]) -> int:
    """Return the next guess of the player that is imitated.

    In half of the rounds it halves what is left, in the others it ignores what it was told: what
    reinforcement learning has to choose between.
    """
    if drawn(f"style {round}") % 2:
        return 1 + drawn(f"guess {round} {len(guesses)}") % HIGHEST
    low, high = 1, HIGHEST
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

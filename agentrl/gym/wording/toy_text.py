"""Words for Gymnasium's toy-text environments, whose states and actions are numbers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentrl.gym.wording.env_wording import EnvWording


def _frozen_lake(env: Any, state: Any) -> str:
    rows = [[cell.decode() for cell in row] for row in env.desc]
    row, column = divmod(int(state), env.ncol)
    standing_on = rows[row][column]
    rows[row][column] = "@"
    grid = "\n".join("".join(cells) for cells in rows)
    return f"{grid}\nYou are at row {row}, column {column}, on {standing_on}."


def _cliff_walking(env: Any, state: Any) -> str:
    row, column = divmod(int(state), env.shape[1])
    return (
        f"You are at row {row}, column {column} of a grid of {env.shape[0]} rows and "
        f"{env.shape[1]} columns."
    )


def _taxi(env: Any, state: Any) -> str:
    row, column, passenger, goal = env.decode(int(state))
    stands = ("R (row 0, column 0)", "G (row 0, column 4)", "Y (row 4, column 0)")
    places = (*stands, "B (row 4, column 3)", "in the taxi")
    grid = b"\n".join(b"".join(cells) for cells in env.desc).decode()
    return (
        f"{grid}\nThe taxi is at row {row}, column {column}. "
        f"The passenger is {'' if passenger == 4 else 'at '}{places[passenger]}. "
        f"The destination is {places[goal]}."
    )


def _blackjack(env: Any, state: Any) -> str:
    player_sum, dealer, ace = (int(part) for part in state)
    return (
        f"Your cards add up to {player_sum}, with {'a' if ace else 'no'} usable ace. "
        f"The dealer shows {'an ace' if dealer == 1 else dealer}."
    )


WORDINGS: Mapping[str, EnvWording] = MappingProxyType(
    {
        "FrozenLakeEnv": EnvWording(
            rules=(
                "Walk over a frozen lake from S to the goal G. F is frozen and safe, H is a hole "
                "that ends the walk, @ is where you are. The ice may be slippery."
            ),
            actions=("left", "down", "right", "up"),
            describe=_frozen_lake,
        ),
        "CliffWalkingEnv": EnvWording(
            rules=(
                "Walk from the bottom left corner of a grid to the bottom right corner. The cells "
                "between them, in the bottom row, are a cliff: it costs 100 and takes you back to "
                "the start. Every step costs 1. Row 0 is at the top."
            ),
            actions=("up", "right", "down", "left"),
            describe=_cliff_walking,
        ),
        "TaxiEnv": EnvWording(
            rules=(
                "Drive the taxi to the passenger, pick the passenger up, drive to the destination "
                "and drop the passenger off there. Walls are drawn as |, ways through as : and row "
                "0 is at the top. Every step costs 1, a wrong pickup or dropoff costs 10."
            ),
            actions=("south", "north", "east", "west", "pickup", "dropoff"),
            describe=_taxi,
        ),
        "BlackjackEnv": EnvWording(
            rules=(
                "Play blackjack: come closer to 21 than the dealer without going over. "
                "hit takes a card, stick ends your turn."
            ),
            actions=("stick", "hit"),
            describe=_blackjack,
        ),
    }
)
"""By the class name of the unwrapped environment, which is the same in every version."""

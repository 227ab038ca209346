"""Guess rates of task families: the mean reward of the best answer that solves nothing.

Such an answer is the same for all problems, or copied from the question. The rates are measured at
reasoning-gym's default parameters and rounded up;
`tests/unit/envs/reasoning/test_pays_for_nothing.py` holds every family to its own.
"""

from collections.abc import Mapping

READABLE = 0.05
"""Of families without a rate of their own: reasoning-gym's credit for an answer in the right form,
and as many answers as make a hit by chance."""

_OPTIONS: Mapping[str, float] = {
    "acre": 0.45,
    "circuit_logic": 0.65,
    "color_cube_rotation": 0.15,
    "course_schedule": 0.55,
    "family_relationships": 0.2,
    "game_of_life_halting": 0.55,
    "isomorphic_strings": 0.6,
    "knight_swap": 0.5,
    "mahjong_puzzle": 0.4,
    "number_format": 0.4,
    "ransom_note": 0.55,
    "shortest_path": 0.4,
    "syllogism": 0.75,
    "zebra_puzzles": 0.4,
}
"""Yes or no, a name or a number that the question offers: the share of the most frequent one."""
_SMALL_ANSWERS: Mapping[str, float] = {
    "aiw": 0.25,
    "binary_alternation": 0.3,
    "calendar_arithmetic": 0.15,
    "coin_flip": 0.1,
    "count_bits": 0.2,
    "game_of_life": 0.2,
    "gcd": 0.35,
    "jugs": 0.1,
    "largest_island": 0.2,
    "letter_counting": 0.4,
    "list_functions": 0.15,
    "manipulate_matrix": 0.1,
    "maze": 0.35,
    "n_queens": 0.1,
    "polynomial_equations": 0.4,
    "power_function": 0.15,
    "products": 0.1,
    "rectangle_count": 0.15,
    "rotten_oranges": 0.35,
    "self_reference": 0.5,
    "simple_equations": 0.1,
    "sokoban": 0.1,
    "tower_of_hanoi": 0.1,
    "tsumego": 0.1,
}
"""Small numbers, short lists and empty boards, of which some are frequent."""
_COPIES: Mapping[str, float] = {
    "lcm": 0.2,
    "number_sequence": 0.3,
    "pool_matrix": 0.35,
    "prime_factorization": 0.25,
    "rearc": 0.15,
    "rotate_matrix": 0.5,
    "string_insertion": 0.9,
    "string_manipulation": 0.4,
}
"""Problems whose answer stands in the question: a prime is its own factor, a turn by 360 degrees
changes nothing, and most texts have no place for an insertion."""
_CHANCE: Mapping[str, float] = {
    "arc_agi": 0.1,
    "figlet_font": 0.1,
    "letter_jumble": 0.1,
    "palindrome_generation": 0.1,
    "spell_backward": 0.15,
}
"""Partial credit by letters and cells, of which some are right by chance."""

GUESS_RATES: Mapping[str, float] = {**_OPTIONS, **_SMALL_ANSWERS, **_COPIES, **_CHANCE}
"""The rates of families that have one."""

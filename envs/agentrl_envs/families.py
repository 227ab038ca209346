"""The names of task families, readable without importing what makes the tasks.

Listing the registered environments must stay quick, and reasoning-gym takes most of a second to
import. Tests hold these lists equal to reasoning-gym's own registry and to our own families.
"""

from collections.abc import Mapping
from types import MappingProxyType

_NAMES = """
ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
binary_matrix bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic chain_sum circuit_logic
coin_flip color_cube_rotation complex_arithmetic count_bits count_primes countdown course_schedule
cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships
figlet_font fraction_simplification futoshiki game_of_life game_of_life_halting gcd graph_color
group_anagrams gsm_symbolic intermediate_integration isomorphic_strings jugs kakurasu knight_swap
knights_knaves largest_island lcm leg_counting letter_counting letter_jumble list_functions
mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid n_queens needle_haystack
number_filtering number_format number_sequence number_sorting palindrome_generation
palindrome_partitioning path_star polynomial_equations polynomial_multiplication pool_matrix
power_function prime_factorization products propositional_logic puzzle24 quantum_lock ransom_note
rearc rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour self_reference
sentence_reordering shortest_path simple_equations simple_geometry simple_integration sokoban
spell_backward spiral_matrix string_insertion string_manipulation string_splitting string_synthesis
sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder word_sequence_reversal
word_sorting zebra_puzzles
"""

FAMILIES: tuple[str, ...] = tuple(_NAMES.split())
"""Every usable family of reasoning-gym, in alphabetical order."""

PROGRAMS: tuple[str, ...] = (
    *("text_pipeline", "records", "brackets", "run_lengths", "checksum", "numerals"),
    *("list_pipeline", "intervals", "matrix_walk", "filtered_sum", "working_days"),
    *("machine", "reachability", "automaton"),
)
"""The families of programming tasks, which are agentrl's own; see `agentrl_envs.programs`."""

UNUSABLE: Mapping[str, str] = MappingProxyType(
    {
        "codeio": "it runs programs from a data file inside this process, prints what they print, "
        "and does not repeat itself for one seed",
        "composite": "it mixes other families; name those in `families` instead",
    }
)
"""Families reasoning-gym registers and these environments leave out, each with the reason."""

HASH_ORDERED: frozenset[str] = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
"""Families that go through a set of texts while they make a problem.

Two processes agree on their problems only under one fixed `PYTHONHASHSEED`. The splits stay apart
all the same, because a problem's own text decides its split.
"""


def camel(family: str) -> str:
    """Return a family's name as it stands in an environment id: `chain_sum` is `ChainSum`."""
    return "".join(part.capitalize() for part in family.split("_"))

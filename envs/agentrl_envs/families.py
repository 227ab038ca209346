"""The names of task families, and their tasks in turn.

Nothing here imports a module that makes tasks: listing the registered environments must stay
quick, and reasoning-gym takes most of a second to import. Tests hold these lists equal to
reasoning-gym's own registry and to our own families.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from agentrl.task import Task

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
power_function prime_factorization products puzzle24 quantum_lock ransom_note
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

_PAGES = """
ascending-numbers bisect-angle book-flight book-flight-nodelay button-delay buy-ticket chase-circle
choose-date choose-date-easy choose-date-medium choose-date-nodelay choose-list circle-center
click-button click-button-sequence click-checkboxes click-checkboxes-large click-checkboxes-soft
click-checkboxes-transfer click-collapsible click-collapsible-2 click-collapsible-2-nodelay
click-collapsible-nodelay click-color click-dialog click-dialog-2 click-link click-menu click-menu-2
click-option click-pie click-pie-nodelay click-scroll-list click-shades click-shape click-tab
click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test click-test-2
click-test-transfer click-widget copy-paste copy-paste-2 count-shape count-sides daily-calendar
drag-box drag-circle drag-cube drag-items drag-items-grid drag-shapes drag-shapes-2
drag-single-shape drag-sort-numbers draw-circle draw-line email-inbox email-inbox-delete
email-inbox-forward email-inbox-forward-nl email-inbox-forward-nl-turk email-inbox-important
email-inbox-nl-turk email-inbox-noscroll email-inbox-reply email-inbox-star-reply enter-date
enter-password enter-text enter-text-2 enter-text-dynamic enter-time find-greatest find-midpoint
find-word focus-text focus-text-2 form-sequence form-sequence-2 form-sequence-3 generate-number
grid-coordinate guess-number highlight-text highlight-text-2 hot-cold hover-shape identify-shape
login-user login-user-popup moving-items multi-layouts multi-orderings navigate-tree
number-checkboxes odd-or-even order-food phone-book read-table read-table-2 resize-textarea
right-angle scroll-text scroll-text-2 search-engine sign-agreement simon-says simple-algebra
simple-arithmetic social-media social-media-all social-media-some stock-market terminal text-editor
text-transform tic-tac-toe unicode-test use-autocomplete use-autocomplete-nodelay use-colorwheel
use-colorwheel-2 use-slider use-slider-2 use-spinner visual-addition
"""

MINIWOB: tuple[str, ...] = tuple(_PAGES.split())
"""The families of MiniWoB++, by the names of their pages; see `agentrl_envs.web.miniwob`."""

UNUSABLE: Mapping[str, str] = MappingProxyType(
    {
        "codeio": "it runs programs from a data file inside this process, prints what they print, "
        "and does not repeat itself for one seed",
        "propositional_logic": (
            "its verifier accepts any formula that follows: `P or Q` in most problems, a repeated "
            "premise in all, and there is no reference answer to compare with"
        ),
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
    return "".join(part.capitalize() for part in family.replace("-", "_").split("_"))


def interleave(streams: Sequence[Iterator[Task]]) -> Iterator[Task]:
    """Yield a task of each stream in turn; a stream that has ended drops out."""
    while streams:
        going_on = list[Iterator[Task]]()
        for stream in streams:
            if (task := next(stream, None)) is not None:
                going_on.append(stream)
                yield task
        streams = going_on

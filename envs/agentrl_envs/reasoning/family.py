"""One of reasoning-gym's task families at fixed parameters: its problems and its verifier."""

import contextlib
import dataclasses
import io
import random
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import Any, cast

from agentrl.errors import ConfigError, EnvError, blame
from agentrl_envs.families import FAMILIES, UNUSABLE
from agentrl_envs.reasoning.guard import admissible
from agentrl_envs.reasoning.optional_pycosat import PYCOSAT_MISSING, import_factory, lacks_pycosat
from agentrl_envs.reasoning.record import to_json

Entry = dict[str, Any]
"""Problem of reasoning-gym: `question`, `answer`, `metadata`."""

SEGMENT = 500
"""Problems per reasoning-gym dataset: a few families prepare all of theirs when constructed."""

ATTEMPTS = 20
"""Segments in a row that may give nothing before a family is said to be broken."""

IMPURE = frozenset({"bf", "list_functions", "pool_matrix", "rectangle_count"})
"""Families that print, or use the process-wide random generators, while they make a problem."""
TRUTHY = frozenset({"game_of_life_halting"})
"""Families whose verifier takes any answer for right; they get reasoning-gym's exact one."""
ALL_OR_NOTHING = frozenset(
    {
        *("calendar_arithmetic", "game_of_life", "mini_sudoku", "polynomial_equations"),
        *("prime_factorization", "rectangle_count", "sentence_reordering", "sudoku"),
        *("time_intervals", "word_sorting"),
    }
)
"""Families whose partial credit is paid for answers that solve nothing, such as a board of zeros, a
number near most, or the question's own words. They pay 1 for a perfect answer, else 0."""
COIN_FLIP_ERROR, COIN_FLIP_RELATIVE_ERROR = Fraction(1, 10_000), Fraction(1, 100)
"""Tolerances of a probability; reasoning-gym pays for the first digit, which is a zero."""
UNSOUND: Mapping[str, re.Pattern[str]] = {
    "jugs": re.compile(r'^\["No solution"\]$'),
    "simple_equations": re.compile(r": 0 = 0$"),
}
"""Questions or reference answers of problems left out.

Every number solves `0 = 0`, and one is taken for right; a solver that gave up leaves a reference
that the verifier refuses.
"""

_INTEGER = re.compile(r"\b\d+\b")
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class ReasoningFamily:
    """Problems of one family. Immutable but for what it caches; safe to share between episodes.

    Raises `ConfigError` for an unknown family, parameter or level, and for values that
    reasoning-gym refuses.
    """

    def __init__(
        self, name: str, params: Mapping[str, Any] | None = None, *, difficulty: int | None = None
    ) -> None:
        self.name = name
        self.settings = {"name": name, "params": to_json(params or {}), "difficulty": difficulty}
        """What `mixture.family_of` makes an equal one from, in JSON's types."""
        self._dataset_class, self._config = _build_config(name, dict(params or {}), difficulty)

    def entries(self, seed: int) -> Iterator[tuple[int, Entry]]:
        """Yield problems for ever, each with its own seed: `seed`, `seed + 1` and so on.

        A few generators give up on a few seeds; the rest of that segment is left out. Raises
        `EnvError` after `ATTEMPTS` segments in a row that give nothing.
        """
        failed = 0
        for start in count(seed, SEGMENT):
            dataset = self._make_dataset(start)
            for index in range(SEGMENT):
                try:
                    entry = self._make_entry(dataset, index, seed=start + index)
                except EnvError:
                    failed += 1
                    if failed == ATTEMPTS:
                        raise
                    break
                failed = 0
                if not self._is_unsound(entry):
                    yield start + index, entry

    def score(self, answer: str, entry: Mapping[str, Any]) -> float:
        """Return the score of an answer, between 0 and 1, all in this process."""
        decided = self.decide(answer, entry)
        return self.judge(answer, entry) if decided is None else decided

    def decide(self, answer: str, entry: Mapping[str, Any]) -> float | None:
        """Return the score of an answer that no verifier has to see, None for any other.

        The reference is right. No answer is wrong, and so is one beyond the limits of `guard`.
        """
        if answer == entry["answer"]:
            return 1.0
        return None if answer and admissible(self.name, answer) else 0.0

    def judge(self, answer: str, entry: Mapping[str, Any]) -> float:
        """Return reasoning-gym's own verdict, 0 where its verifier cannot read the answer.

        Foreign code: it may take any time and memory, and change `entry`.
        """
        try:
            score = float(self._judge(answer, entry))
        except _UNREADABLE:
            return 0.0
        return float(score >= 1) if self.name in ALL_OR_NOTHING else score

    def _judge(self, answer: str, entry: Mapping[str, Any]) -> float:
        if self.name == "coin_flip":
            return is_probability(answer, **entry["metadata"]["rational"])
        if self.name == "puzzle24" and not uses_numbers(answer, entry["metadata"]["numbers"]):
            return 0.0
        if self.name in TRUTHY:
            from reasoning_gym.dataset import ProceduralDataset

            return ProceduralDataset.score_answer(self._verifier, answer, dict(entry))
        return self._verifier.score_answer(answer, dict(entry))

    @cached_property
    def _verifier(self) -> Any:
        return self._make_dataset(0)

    def _make_dataset(self, seed: int) -> Any:
        with blame(EnvError, f"reasoning-gym's family {self.name!r}"):
            return self._dataset_class(dataclasses.replace(self._config, seed=seed, size=SEGMENT))

    def _make_entry(self, dataset: Any, index: int, *, seed: int) -> Entry:
        with (
            blame(EnvError, f"reasoning-gym's family {self.name!r}, seed {seed}"),
            self._contain_side_effects(seed),
        ):
            return dict(dataset[index])

    def _is_unsound(self, entry: Entry) -> bool:
        pattern = UNSOUND.get(self.name)
        texts = (entry["question"], str(entry["answer"]))
        return pattern is not None and any(pattern.search(text) for text in texts)

    @contextlib.contextmanager
    def _contain_side_effects(self, seed: int) -> Generator[None]:
        """Seed what an impure family draws from; keep its prints and draws out of the process."""
        if self.name not in IMPURE:
            yield
            return
        import numpy as np

        python_state, arrays = random.getstate(), np.random.get_state()
        random.seed(seed)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            random.setstate(python_state)
            np.random.set_state(arrays)


def is_probability(answer: str, numerator: int, denominator: int) -> bool:
    """Return whether an answer is this probability, as a fraction or to two digits or more."""
    exact = Fraction(numerator, denominator)
    error = abs(Fraction(answer.replace(",", "")) - exact)
    return error <= min(COIN_FLIP_ERROR, COIN_FLIP_RELATIVE_ERROR * exact)


def uses_numbers(formula: str, numbers: Sequence[int]) -> bool:
    """Return whether a formula has these numbers, each as often as it is there, and no others."""
    return sorted(map(int, _INTEGER.findall(formula))) == sorted(numbers)


def require_family(name: str) -> str:
    """Return `name` if it is a usable family; raise `ConfigError` with the nearest names else."""
    if lacks_pycosat(name):
        raise ConfigError(f"task family {name!r} {PYCOSAT_MISSING}")
    if name in FAMILIES:
        return name
    if name in UNUSABLE:
        raise ConfigError(f"task family {name!r} cannot be used here: {UNUSABLE[name]}")
    near = get_close_matches(name, FAMILIES, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "see agentrl_envs.families.FAMILIES"
    raise ConfigError(f"unknown task family {name!r}; {hint}")


def _build_config(name: str, params: dict[str, Any], difficulty: int | None) -> tuple[Any, Any]:
    """Return a family's dataset class, and its configuration checked by reasoning-gym."""
    dataset_class, config_class = import_factory().DATASETS[require_family(name)]
    fields = [field.name for field in dataclasses.fields(config_class)]
    _check_params(name, params, [field for field in fields if field not in ("seed", "size")])
    level = "" if difficulty is None else f" at difficulty {difficulty}"
    start = config_class() if difficulty is None else _build_level_config(name, difficulty)
    try:
        overrides = {
            param: _convert_enums(getattr(start, param), value) for param, value in params.items()
        }
        config = dataclasses.replace(start, **overrides)
        if hasattr(config, "validate"):
            config.validate()
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"task family {name!r} with {params}{level} is refused by reasoning-gym: {error}"
        ) from error
    return dataset_class, config


def _convert_enums(default: Any, value: Any) -> Any:
    """Return `value`, or the member of an enum it names where the default is one, or a list."""
    if isinstance(default, list | tuple) and default and isinstance(value, list | tuple):
        first = cast("Sequence[Any]", default)[0]
        return [_convert_enums(first, item) for item in cast("Sequence[Any]", value)]
    return type(default)(value) if isinstance(default, Enum) else value


def _check_params(name: str, params: Mapping[str, Any], allowed: list[str]) -> None:
    for param in params:
        if param in ("seed", "size"):
            raise ConfigError(
                f"parameter {param!r} of task family {name!r} is set by the environment: the seed "
                "comes from the run, and the number of tasks from `size` of the environment; "
                "remove it"
            )
        if param not in allowed:
            near = get_close_matches(param, allowed, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"task family {name!r} has no parameter {param!r}; {hint}"
                f"it has {', '.join(sorted(allowed))}"
            )


def _build_level_config(name: str, difficulty: int) -> Any:
    top = top_level(name)
    if top is None:
        raise ConfigError(
            f"task family {name!r} has no difficulty levels; omit `difficulty` for it and set its "
            "parameters in `families` instead"
        )
    if not 0 <= difficulty <= top:
        raise ConfigError(
            f"difficulty of task family {name!r} must be between 0 and {top}, got {difficulty}"
        )
    curriculum = import_factory().create_curriculum(name)
    curriculum.set_global_level(difficulty)
    return curriculum.generate_configuration()


def top_level(name: str) -> int | None:
    """Return the highest difficulty of a family, or None for one without a curriculum."""
    factory = import_factory()
    if not factory.has_curriculum(require_family(name)):
        return None
    attributes = factory.create_curriculum(name).attributes.values()
    levels = [len(attribute.levels) for attribute in attributes]
    return max(levels, default=1) - 1

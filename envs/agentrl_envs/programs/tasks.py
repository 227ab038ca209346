"""Step 1 for these families: problems with examples to show and tests to hide."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

from agentrl.errors import ConfigError
from agentrl.grading import CallTest
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task, split_of
from agentrl_envs.families import interleave
from agentrl_envs.programs.family import Arguments, Params, ProgramFamily
from agentrl_envs.templates import SEEDS

_LONGEST_STREAM = 2**24
EXAMPLES = 3
_DRAWS = 400
"""Inputs looked at for one problem."""

_PROMPT = """\
Write the file solution.py in the current directory. It must define the function solve({arguments}).

{rules}

Examples:
{examples}

The file will be run on other arguments, and what solve returns is compared with what is right, \
types included."""


def tasks_of(
    families: Sequence[ProgramFamily],
    split: Split,
    seed: int,
    *,
    level: int,
    hidden_tests: int,
    heldout_fraction: float,
    size: int | None = None,
) -> Iterator[Task]:
    """Yield a split's tasks, one family after the other in turn; a pure function of the arguments.

    What a program must do decides its split, whatever examples it comes with. A family whose
    problems are used up drops out; `ConfigError` if one has none for the split.
    """
    streams = [
        _stream(family, split, seed, level, hidden_tests, heldout_fraction) for family in families
    ]
    return islice(interleave(streams), size)


def hidden_of(task: Task) -> tuple[CallTest, ...]:
    """Return the hidden tests of a task."""
    return tuple(
        CallTest(id=test["id"], arguments=tuple(test["arguments"]), wanted=test["wanted"])
        for test in task.answer
    )


def _stream(
    family: ProgramFamily,
    split: Split,
    seed: int,
    level: int,
    hidden_tests: int,
    heldout_fraction: float,
) -> Iterator[Task]:
    share = heldout_fraction if split == "heldout" else 1 - heldout_fraction
    patience = math.ceil(100 / share)
    seeds = SEEDS[split]
    start = derive("programs", family.name, split, seed) % (len(seeds) - _LONGEST_STREAM)
    problems = set[str]()
    since_new = 0
    for problem_seed in range(seeds.start + start, seeds.stop):
        rng = Random(derive("programs", family.name, level, problem_seed))
        params = family.draw(rng, level)
        problem = json.dumps([family.name, params], sort_keys=True)
        task = None
        if (
            problem not in problems
            and split_of(problem, heldout_fraction=heldout_fraction) == split
        ):
            problems.add(problem)
            task = make_task(family, params, rng, level=level, hidden_tests=hidden_tests)
        if task is not None:
            since_new = 0
            yield Task(**task, split=split, seed=problem_seed)
        elif (since_new := since_new + 1) >= patience:
            break
    if not problems:
        raise ConfigError(
            f"programs: none of {patience} problems of {family.name!r} at level {level} falls into "
            f"the split {split!r}; change heldout_fraction={heldout_fraction:g}"
        )


def make_task(
    family: ProgramFamily, params: Params, rng: Random, *, level: int, hidden_tests: int
) -> dict[str, Any] | None:
    """Return the data of a task, or None where too few inputs differ in their outcome.

    No answer is right for more than a third of the hidden tests, and no hidden test is an example.
    """
    examples = list[Arguments]()
    hidden = list[tuple[str, Arguments]]()
    input_texts, outcomes = set[str](), Counter[str]()
    edges = list(family.edges(params))[: hidden_tests // 2]
    for number in range(len(edges) + _DRAWS):
        at_edge = number < len(edges)
        arguments = edges[number] if at_edge else family.inputs(rng, params, level)
        text = json.dumps(arguments)
        outcome = json.dumps(family.reference(params, *json.loads(text)), sort_keys=True)
        if text in input_texts or outcomes[outcome] >= max(1, hidden_tests // 3):
            continue
        if not at_edge and len(examples) < EXAMPLES:
            if outcome not in [json.dumps(_outcome(family, params, one)) for one in examples]:
                input_texts.add(text)
                examples.append(arguments)
            continue
        input_texts.add(text)
        outcomes[outcome] += 1
        hidden.append((f"edge-{number}" if at_edge else f"drawn-{number}", arguments))
        if len(hidden) == hidden_tests:
            return _write_task(family, params, examples, hidden, level=level)
    return None


def _write_task(
    family: ProgramFamily,
    params: Params,
    shown: Sequence[Arguments],
    hidden: Sequence[tuple[str, Arguments]],
    *,
    level: int,
) -> dict[str, Any]:
    examples = [
        f"solve({', '.join(map(repr, one))}) == {_outcome(family, params, one)!r}" for one in shown
    ]
    prompt = _PROMPT.format(
        arguments=family.arguments, rules=family.describe(params), examples="\n".join(examples)
    )
    tests = [
        {"id": name, "arguments": [*one], "wanted": _outcome(family, params, one)}
        for name, one in hidden
    ]
    shown_arguments = [[*one] for one in shown]
    data = {"family": family.name, "level": level, "params": params, "examples": shown_arguments}
    return {"prompt": prompt, "answer": tests, "data": data, "tags": (family.name,)}


def _outcome(family: ProgramFamily, params: Params, arguments: Arguments) -> Any:
    """Return the right answer; the arguments are copied, in case the reference changes them."""
    return json.loads(json.dumps(family.reference(params, *json.loads(json.dumps(arguments)))))

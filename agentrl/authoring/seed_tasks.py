"""Tasks of a world whose problems are the seeds of its `reset`, as other people's worlds are."""

import random
from collections.abc import Iterator

from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task, split_of


def seed_tasks(
    kind: str, name: str, split: Split, *, seed: int, prompt: str = ""
) -> Iterator[Task]:
    """Yield endless seeds as tasks; a seed's own number decides its split.

    `kind` tells the libraries apart, `name` their worlds. The answer makes the fingerprints differ:
    worlds that open alike and go on by chance are different problems.
    """
    rng = random.Random(derive(kind, split, seed))
    while True:
        number = rng.randrange(2**31)
        id = f"{name}#{number}"
        if split_of(id) == split:
            yield Task(prompt=prompt or id, answer=number, id=id, split=split, seed=number)

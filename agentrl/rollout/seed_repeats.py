"""A task that comes twice in one step: its trajectories must not have the same seeds twice."""

KEPT_STEPS = 256
"""Steps after which a group is forgotten: by then it has begun for the last time."""


class SeedRepeats:
    """Counts the groups of one task within a step, in the order in which they begin."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[str, list[int]]] = {}

    def find_repeat(self, number: int, task_id: str, *, step: int = 0) -> tuple[int, ...]:
        """Return the parts of group `number`'s seeds besides its task.

        Nothing for the first group of a task in a step, and how many there were before it for any
        other, however often and in whatever order it is asked again.
        """
        if step not in self._groups:
            self._groups = {
                s: groups for s, groups in self._groups.items() if s > step - KEPT_STEPS
            }
            self._groups[step] = {}
        numbers = self._groups[step].setdefault(task_id, [])
        if number not in numbers:
            numbers.append(number)
        before = numbers.index(number)
        return (before,) if before else ()

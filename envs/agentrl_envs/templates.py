"""Tasks made of templates: filled in by seeds, in turns, split by seed or by template."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from random import Random
from typing import Any, Generic, Literal, Protocol, TypeVar

from agentrl.errors import ConfigError
from agentrl.runtime.seeds import derive
from agentrl.task import Split, Task, split_of

HeldOut = Literal["seed", "template"]
LEVELS = (1, 2, 3)
SEEDS: dict[Split, range] = {"train": range(2**31), "heldout": range(2**31, 2**32)}
"""Ranges of the seeds of tasks, by split."""
Wanted = dict[str, Any]
"""Parameters of one task of a kind; JSON-serialisable. `goal` is the text that the agent reads."""
_TRIES = 100


class UnfitChoice(Exception):
    """These random choices make no task of this kind; others may."""


class TemplateKind(Protocol):
    """A kind of task."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def level(self) -> int:
        """Return 1 to 3: how many steps and conditions."""
        ...


T = TypeVar("T", bound=TemplateKind)


class TemplateTasks(ABC, Generic[T]):
    """The tasks of some templates. What fills a template in is for a subclass to say."""

    def __init__(
        self,
        name: str,
        every: Sequence[T],
        held: frozenset[str],
        *,
        templates: Sequence[str] = (),
        levels: Sequence[int] = LEVELS,
        size: int | None = None,
        heldout_by: HeldOut = "seed",
        heldout_fraction: float = 0.1,
    ) -> None:
        """Choose tasks; raises `ConfigError` for what there is not, and for a split left empty.

        Args:
            name: What the templates belong to, for ids and errors.
            every: All templates there are.
            held: Names of those kept for evaluation where templates are held out.
            templates: Kinds of tasks by name; empty for all.
            levels: Levels of templates, of 1 to 3.
            size: At most so many tasks per split; None sets no end.
            heldout_by: Held-out tasks are other tasks of every template (`seed`), or all tasks of
                templates that are kept for it (`template`).
            heldout_fraction: With `seed`, the share of all tasks that is held out.
        """
        self._name = name
        self._held = held
        self._size = size
        self._by = heldout_by
        self._fraction = heldout_fraction
        self._all = {template.name: template for template in every}
        for one in templates:
            if one not in self._all:
                near = get_close_matches(one, self._all, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigError(
                    f"{name} has no template {one!r}.{hint} Its templates are "
                    f"{', '.join(self._all)}"
                )
        if not levels or not {*levels} <= {*LEVELS}:
            raise ConfigError(f"levels={list(levels)!r} must be one or more of {list(LEVELS)}")
        if heldout_by not in ("seed", "template"):
            raise ConfigError(f"heldout_by is {heldout_by!r}; it must be 'seed' or 'template'")
        if not 0 < heldout_fraction < 1:
            raise ConfigError(f"heldout_fraction must be between 0 and 1, got {heldout_fraction}")
        if size is not None and size < 1:
            raise ConfigError(f"size must be at least 1 task per split, got {size}")
        self._chosen = [
            template
            for template in every
            if template.level in levels and (not templates or template.name in templates)
        ]
        for split in SEEDS:
            if not self._of(split):
                raise ConfigError(
                    f"no template of {name} is left for the split {split!r}; with "
                    f"heldout_by='template' {', '.join(sorted(held))} are held "
                    "out; choose more templates or levels"
                )

    @abstractmethod
    def fill_in(self, template: T, random: Random, seed: int) -> Wanted:
        """Return the parameters of a template's task; may raise `UnfitChoice`."""

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Yield the tasks of a split; a problem comes once."""
        templates = self._of(split)
        seeds = SEEDS[split]
        first = derive("site", self._name, split, seed) % (len(seeds) // 2)
        fingerprints = set[str]()
        fruitless = 0
        for number in range(len(seeds) // 2):
            if len(fingerprints) == self._size or fruitless > _TRIES * len(templates):
                return
            template = templates[number % len(templates)]
            task = self._task(template, split, seeds.start + first + number)
            fruitless += 1
            if task is not None and task.fingerprint not in fingerprints:
                fruitless = 0
                fingerprints.add(task.fingerprint)
                yield task

    def template_of(self, task: Task) -> T:
        """Return the template a task was made of."""
        return self._all[task.data["template"]]

    def _of(self, split: Split) -> list[T]:
        if self._by == "seed":
            return self._chosen
        return [t for t in self._chosen if (t.name in self._held) == (split == "heldout")]

    def _task(self, template: T, split: Split, seed: int) -> Task | None:
        random = Random(derive("site task", self._name, template.name, seed))
        try:
            spec = self.fill_in(template, random, seed)
        except UnfitChoice:
            return None
        task = Task(
            prompt=spec["goal"],
            answer=spec.get("answer"),
            id=f"{self._name}-{template.name}-{seed}",
            split=split,
            seed=seed,
            data={"template": template.name, "seed": seed, "wanted": spec},
            tags=(template.name, f"level {template.level}"),
        )
        # What is asked decides the split too: two seeds can ask the same.
        if self._by == "seed":
            mine = split_of(task.fingerprint, heldout_fraction=self._fraction) == split
            return task if mine else None
        return task

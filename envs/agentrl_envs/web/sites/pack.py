"""The tasks of a site: its templates, filled in by seeds, and the world of each."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random
from typing import Any, Generic, Literal, TypeVar

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.seeds import derive
from agentrl.task import Split, Task, split_of
from agentrl_envs.web.sites.asgi import AsgiApp, AsgiWorld
from agentrl_envs.web.sites.play import next_action
from agentrl_envs.web.sites.template import Template, Unfit, Wanted, checker

State = TypeVar("State")
HeldOut = Literal["seed", "template"]
LEVELS = (1, 2, 3)
SEEDS: Mapping[Split, range] = {"train": range(2**31), "heldout": range(2**31, 2**32)}
"""Where the seeds of a split's tasks lie."""
_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(Generic[State]):
    """A site, and what there is to do on it."""

    name: str
    app: Callable[[], AsgiApp]
    state: Callable[[int], State]
    """Makes the state of a seed."""
    summary: Callable[[State], Mapping[str, Any]]
    """Tells everything of a state that a task may be about, in plain values."""
    templates: Sequence[Template[State]]
    heldout_templates: frozenset[str]
    """Kept for evaluation where templates are held out."""

    @property
    def origin(self) -> str:
        """Return where the site seems to be; no such host exists."""
        return f"http://{self.name}.invalid"


class SitePack(Generic[State]):
    """The tasks of a site. Templates take turns."""

    def __init__(
        self,
        site: Site[State],
        *,
        templates: Sequence[str] = (),
        levels: Sequence[int] = LEVELS,
        size: int | None = None,
        heldout_by: HeldOut = "seed",
        heldout_fraction: float = 0.1,
    ) -> None:
        """Choose tasks; raises `ConfigError` for what there is not, and for a split left empty.

        Args:
            site: The site.
            templates: Kinds of tasks by name; empty for all.
            levels: Levels of templates, of 1 to 3.
            size: At most so many tasks per split; None sets no end.
            heldout_by: Held-out tasks are other tasks of every template (`seed`), or all tasks of
                templates that are kept for it (`template`).
            heldout_fraction: With `seed`, the share of all tasks that is held out.
        """
        self._site = site
        self._size = size
        self._by = heldout_by
        self._fraction = heldout_fraction
        self._all = {template.name: template for template in site.templates}
        for name in templates:
            if name not in self._all:
                near = get_close_matches(name, self._all, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigError(
                    f"{site.name} has no template {name!r}.{hint} It has {', '.join(self._all)}"
                )
        if not levels or not {*levels} <= {*LEVELS}:
            raise ConfigError(f"levels={list(levels)!r} must be one or more of {list(LEVELS)}")
        if heldout_by not in ("seed", "template"):
            raise ConfigError(f"heldout_by is {heldout_by!r}; it is 'seed' or 'template'")
        if not 0 < heldout_fraction < 1:
            raise ConfigError(f"heldout_fraction must lie between 0 and 1, got {heldout_fraction}")
        if size is not None and size < 1:
            raise ConfigError(f"size must be at least 1 task per split, got {size}")
        self._chosen = [
            template
            for template in site.templates
            if template.level in levels and (not templates or template.name in templates)
        ]
        for split in SEEDS:
            if not self._of(split):
                raise ConfigError(
                    f"no template of {site.name} is left for the split {split!r}; with "
                    f"heldout_by='template' {', '.join(sorted(site.heldout_templates))} are held "
                    "out; choose more templates or levels"
                )

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Yield the tasks of a split; a problem comes once."""
        templates = self._of(split)
        seeds = SEEDS[split]
        first = derive("site", self._site.name, split, seed) % (len(seeds) // 2)
        seen = set[str]()
        fruitless = 0
        for number in range(len(seeds) // 2):
            if len(seen) == self._size or fruitless > _TRIES * len(templates):
                return
            template = templates[number % len(templates)]
            task = self._task(template, split, seeds.start + first + number)
            fruitless += 1
            if task is not None and task.fingerprint not in seen:
                fruitless = 0
                seen.add(task.fingerprint)
                yield task

    def world(self, task: Task) -> AsgiWorld[State]:
        """Return the world of a task, with a state of its own."""
        template, wanted = self._all[task.data["template"]], dict(task.data["wanted"])
        state = self._site.state(task.data["seed"])
        template.prepare(state, wanted)
        return AsgiWorld(
            self._site.app(),
            state,
            goal=wanted["goal"],
            check=checker(template, wanted, copy.deepcopy(state), self._site.summary),
            origin=self._site.origin,
        )

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of the template's player."""
        return next_action(self._all[task.data["template"]].play, task, seen)

    def _of(self, split: Split) -> list[Template[State]]:
        if self._by == "seed":
            return self._chosen
        held = self._site.heldout_templates
        return [t for t in self._chosen if (t.name in held) == (split == "heldout")]

    def _task(self, template: Template[State], split: Split, seed: int) -> Task | None:
        random = Random(derive("site task", self._site.name, template.name, seed))
        try:
            wanted: Wanted = template.make(random, self._site.state(seed))
        except Unfit:
            return None
        task = Task(
            prompt=wanted["goal"],
            answer=wanted.get("answer"),
            id=f"{self._site.name}-{template.name}-{seed}",
            split=split,
            seed=seed,
            data={"template": template.name, "seed": seed, "wanted": wanted},
            tags=(template.name, f"level {template.level}"),
        )
        # What is asked decides the split too: two seeds can ask the same.
        if self._by == "seed":
            mine = split_of(task.fingerprint, heldout_fraction=self._fraction) == split
            return task if mine else None
        return task

"""The tasks of a site: its templates, filled in by seeds, and the world of each."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

from agentrl.authoring.setting_kinds import check_setting_kinds
from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.templates import TemplateTasks, Wanted
from agentrl_envs.web.sites.asgi import AsgiApp, AsgiSite
from agentrl_envs.web.sites.play import next_action
from agentrl_envs.web.sites.template import SiteTemplate, build_checker

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSite(Generic[State]):
    """A site, and what there is to do on it."""

    name: str
    app: Callable[[], AsgiApp]
    state: Callable[[int], State]
    """Makes the state of a seed."""
    summary: Callable[[State], Mapping[str, Any]]
    """Tells everything of a state that a task may be about, in plain values."""
    templates: Sequence[SiteTemplate[State]]
    heldout_templates: frozenset[str]
    """Kept for evaluation where templates are held out."""

    @property
    def origin(self) -> str:
        """Apparent origin of the site; no such host exists."""
        return f"http://{self.name}.invalid"


class TemplateSitePack(TemplateTasks[SiteTemplate[State]], Generic[State]):
    """The tasks of a site. Templates take turns; the choices are those of `TemplateTasks`."""

    def __init__(self, site: TemplateSite[State], **choices: Any) -> None:
        """Choose tasks; raises `ConfigError` for what there is not, and for a split left empty."""
        self._site = site
        check_setting_kinds(TemplateTasks, choices, of=f"the tasks of {site.name}")
        try:
            super().__init__(site.name, site.templates, site.heldout_templates, **choices)
        except TypeError as error:
            names = list(inspect.signature(TemplateTasks).parameters)[3:]
            raise ConfigError(
                f"the tasks of {site.name}: {error}; their settings are {', '.join(names)}"
            ) from None

    def fill_in(self, template: SiteTemplate[State], random: Random, seed: int) -> Wanted:
        return template.make(random, self._site.state(seed))

    def world(self, task: Task) -> AsgiSite[State]:
        template, spec = self.template_of(task), dict(task.data["wanted"])
        state = self._site.state(task.data["seed"])
        template.prepare(state, spec)
        return AsgiSite(
            self._site.app(),
            state,
            goal=spec["goal"],
            check=build_checker(template, spec, copy.deepcopy(state), self._site.summary),
            origin=self._site.origin,
        )

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        return next_action(self.template_of(task).play, task, seen)

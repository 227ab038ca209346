"""The tasks that come along, over all programs."""

from collections.abc import Sequence
from random import Random
from typing import Any

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.message import Message
from agentrl.task import Task
from agentrl_envs.gui.tasks.browser import BROWSER_TEMPLATES
from agentrl_envs.gui.tasks.calculator import CALCULATOR
from agentrl_envs.gui.tasks.dialog import DIALOG
from agentrl_envs.gui.tasks.editor import EDITOR
from agentrl_envs.gui.tasks.filer import FILER
from agentrl_envs.gui.tasks.forms import FORMS
from agentrl_envs.gui.tasks.sheet import SHEET
from agentrl_envs.gui.tasks.shell import SHELL
from agentrl_envs.gui.tasks.template import DesktopTemplate
from agentrl_envs.gui.world import DesktopScene, LiveDesktop, TaskVerdict
from agentrl_envs.templates import TemplateTasks, Wanted
from agentrl_envs.web.sites.play import next_action

TEMPLATES: tuple[DesktopTemplate, ...] = (
    *(*FORMS, *DIALOG, *EDITOR, *CALCULATOR, *SHEET, *FILER, *SHELL, *BROWSER_TEMPLATES),
)
HELD_OUT = frozenset(
    {
        *("numbers", "pages", "delete_row"),
        *("change_case", "clear_and_press", "clear_cell", "remove_file"),
        *("copy_file", "enter_code", "web_bookmark"),
    }
)
"""Of every program at least one."""


class TemplatePack(TemplateTasks[DesktopTemplate]):
    """Tasks of templates; the choices are those of `TemplateTasks`."""

    def fill_in(self, template: DesktopTemplate, random: Random, seed: int) -> Wanted:
        """Return the parameters of a task."""
        return template.make(random)

    def scene(self, task: Task) -> DesktopScene:
        """Return the desktop's scene when `task` begins."""
        template, params = self.template_of(task), dict(task.data["wanted"])
        return DesktopScene(
            goal=params["goal"],
            files=template.files(params),
            programs=template.programs(params),
            runs_code=template.runs_code,
        )

    async def judge(
        self, task: Task, desktop: LiveDesktop, said: str | None, *, failed: bool
    ) -> TaskVerdict:
        """Pay 1 for a desktop that is as it must be, and for a right answer where one is asked."""
        template, params = self.template_of(task), dict(task.data["wanted"])
        right = not failed and await template.check(desktop, params, said or "")
        return TaskVerdict(reward=float(right))

    def gold(self, task: Task, seen: Sequence[Message]) -> Action:
        """Return the next action of the template's player."""
        return next_action(self.template_of(task).play, task, seen)


def template_pack(
    *,
    programs: Sequence[str] = (),
    templates: Sequence[str] = (),
    levels: Sequence[int] = (1, 2, 3),
    size: int | None = None,
    heldout_by: Any = "seed",
    heldout_fraction: float = 0.1,
) -> TemplatePack:
    """Return the tasks of some programs and templates; see `TemplateTasks` for the settings."""
    program_names = list(dict.fromkeys(template.program for template in TEMPLATES))
    if unknown := [name for name in programs if name not in program_names]:
        raise ConfigError(
            f"there are no tasks for {unknown}; there are tasks for {', '.join(program_names)}"
        )
    return TemplatePack(
        "gui",
        [one for one in TEMPLATES if not programs or one.program in programs],
        HELD_OUT,
        templates=templates,
        levels=levels,
        size=size,
        heldout_by=heldout_by,
        heldout_fraction=heldout_fraction,
    )

"""All templates, and those that are kept for evaluation where templates are held out."""

from agentrl_envs.gui.tasks.browser import BROWSER_TEMPLATES
from agentrl_envs.gui.tasks.calculator import CALCULATOR
from agentrl_envs.gui.tasks.dialog import DIALOG
from agentrl_envs.gui.tasks.editor import EDITOR
from agentrl_envs.gui.tasks.filer import FILER
from agentrl_envs.gui.tasks.forms import FORMS
from agentrl_envs.gui.tasks.sheet import SHEET
from agentrl_envs.gui.tasks.shell import SHELL
from agentrl_envs.gui.tasks.template import DesktopTemplate

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

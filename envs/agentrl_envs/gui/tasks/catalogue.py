"""All templates, and those that are kept for evaluation where templates are held out."""

from agentrl_envs.gui.tasks.forms import FORMS
from agentrl_envs.gui.tasks.template import Template

TEMPLATES: tuple[Template, ...] = FORMS
HELD_OUT = frozenset({"numbers", "pages", "delete_row"})

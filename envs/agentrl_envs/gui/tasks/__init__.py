"""Tasks on a desktop: templates over programs of our own and Debian's, with players for all."""

from agentrl_envs.gui.tasks.pack import TemplatePack, template_pack

__all__ = ["TemplatePack", "template_pack"]

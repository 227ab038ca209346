"""Words for BrowserGym's environments (https://github.com/ServiceNow/BrowserGym)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentrl.gym.wording.env_wording import EnvWording

_RULES = """\
Reach the goal in the browser. What is shown is the page's accessibility tree: elements with an id \
in brackets, which actions name as text. Every answer is an action, and ends with a call such as \
click('12')."""

_IGNORED_ROLES = ("LineBreak", "InlineTextBox")
"""Roles of nodes that repeat the text around them."""
_SCHEMES = ("http://", "https://")


def _describe_rules(env: Any) -> str:
    """Return the rules with the actions that the environment's own set has."""
    actions = getattr(env.action_mapping, "__self__", None)
    if actions is None or not hasattr(actions, "describe"):
        return _RULES
    described = actions.describe(with_long_description=False, with_examples=True)
    return f"{_RULES}\n\n{described.strip()}"


def _describe_page(env: Any, observation: Mapping[str, Any]) -> str:
    from browsergym.utils.obs import (  # pyright: ignore[reportMissingImports] - of another venv
        flatten_axtree_to_str,
    )

    lines = [f"Goal: {observation['goal']}", f"url: {observation['url']}"]
    if error := observation["last_action_error"]:
        lines.append(f"Error of the last action: {error}")
    tree = flatten_axtree_to_str(
        observation["axtree_object"],
        extra_properties=observation["extra_element_properties"],
        ignored_roles=_IGNORED_ROLES,
    )
    return "\n".join((*lines, tree.strip("\n")))


def _find_action_fault(env: Any, action: str) -> str:
    """Return why a call is refused: an address could run a script that pays, or show a file."""
    from browsergym.core.action.parsers import (  # pyright: ignore[reportMissingImports]
        highlevel_action_parser,
    )

    for calls in highlevel_action_parser.search_string(action).as_list():
        for name, arguments in calls:
            if name != "goto":
                continue
            for argument in arguments:
                address = getattr(argument, "value", argument)
                if not str(address).lower().startswith(_SCHEMES):
                    return f"goto opens http and https addresses only, not {address!r:.80}."
    return ""


WORDINGS: Mapping[str, EnvWording] = MappingProxyType(
    {
        "BrowserEnv": EnvWording(
            rules=_describe_rules,
            describe=_describe_page,
            find_action_fault=_find_action_fault,
        )
    }
)
"""By the class name of the unwrapped environment."""

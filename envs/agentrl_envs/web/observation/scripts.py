"""The two scripts of an observed page."""

from importlib.resources import files
from typing import Final

_HERE = files("agentrl_envs.web.observation")

_PARTS = ("element", "observe", "markup")

HOOK: Final = (_HERE / "hook.js").read_text(encoding="utf-8")
"""For the page's own world, before the page's scripts: notices which elements take the mouse."""
OBSERVE: Final = "(() => {{\n{}\n}})();".format(
    "\n".join((_HERE / f"{name}.js").read_text(encoding="utf-8") for name in _PARTS)
)
"""For an isolated world of every document: defines `observe`, `locate`, `focus`, `forget`."""

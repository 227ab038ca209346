"""Agentic reinforcement learning: environments, rollouts, training.

    task -> environment <-> policy engine -> trajectory tree -> batch -> advantage -> loss
         -> new weights -> policy engine

Three things to do with it: `register` a tool environment, `train` an agent from a config, and
`evaluate` it on held-out tasks. `agentrl/run/train.py` is the map of how it works.

Importing this package is light: what needs torch or transformers is imported when it is used.
"""

import sys

try:
    from importlib import import_module
    from typing import TYPE_CHECKING, Any

    from agentrl import rewards
    from agentrl.authoring.task_choice import sample_pairs
    from agentrl.env import Action, Env, Observation, call, say
    from agentrl.errors import ConfigError, ToolError
    from agentrl.message import Image, Message, ToolCall
    from agentrl.registry import make, register, register_tool_env, registry, spec
    from agentrl.runtime.distribution import __version__ as __version__
    from agentrl.task import Split, Task
    from agentrl.tool import ToolContext, tool

    if TYPE_CHECKING:
        from agentrl.cli.progress import show_progress
        from agentrl.run.evaluate import evaluate
        from agentrl.run.train import train
except KeyboardInterrupt:
    # The command line catches Ctrl-C once this package is imported, and it takes a while.
    if sys.argv[0].rpartition("/")[2] in ("agentrl", "-m"):
        raise SystemExit(130) from None
    raise

__all__ = [
    "Action",
    "ConfigError",
    "Env",
    "Image",
    "Message",
    "Observation",
    "Split",
    "Task",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "call",
    "evaluate",
    "make",
    "register",
    "register_tool_env",
    "registry",
    "rewards",
    "sample_pairs",
    "say",
    "show_progress",
    "spec",
    "tool",
    "train",
]

_LAZY = {
    "evaluate": "agentrl.run.evaluate",
    "show_progress": "agentrl.cli.progress",
    "train": "agentrl.run.train",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'agentrl' has no attribute {name!r}")

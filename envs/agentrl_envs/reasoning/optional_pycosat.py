"""The import of reasoning-gym, which works without pycosat: that has no wheels, and where there is
no C compiler it cannot be installed. One family needs it.
"""

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

from agentrl.runtime.extras import is_installed

PYCOSAT_FAMILIES = frozenset({"zebra_puzzles"})
PYCOSAT_MISSING = (
    "needs pycosat, which is not installed: pip install pycosat, which requires a C compiler and "
    "Python's headers"
)


def import_factory() -> Any:
    """Import `reasoning_gym.factory`, for a moment with an empty module as pycosat if need be."""
    is_missing = "reasoning_gym" not in sys.modules and not is_installed("pycosat")
    if is_missing:
        sys.modules["pycosat"] = ModuleType("pycosat")
    try:
        with warnings.catch_warnings():
            # Of one of its dependencies, where nobody has compiled that yet.
            warnings.simplefilter("ignore", SyntaxWarning)
            return importlib.import_module("reasoning_gym.factory")
    finally:
        if is_missing:
            sys.modules.pop("pycosat", None)


def lacks_pycosat(family: str) -> bool:
    """Return whether a family cannot be used because pycosat is not installed."""
    return family in PYCOSAT_FAMILIES and not is_installed("pycosat")

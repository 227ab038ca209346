"""Every dialect: agentrl's own, those of installed distributions, and what `module:NAME` names."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from agentrl.chat.dialect import ToolCallDialect
from agentrl.chat.dialects.gemma4 import GEMMA4
from agentrl.chat.dialects.harmony import HARMONY
from agentrl.chat.dialects.hermes import GEMMA, HERMES
from agentrl.chat.dialects.listed_calls import LFM2, MISTRAL_V3, NEMOTRON
from agentrl.chat.dialects.llama3 import LLAMA3
from agentrl.chat.dialects.named_calls import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
    MISTRAL,
    MISTRAL_V11,
)
from agentrl.chat.dialects.tagged_values import (
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    GLM_4_5,
    GLM_4_7,
    MINIMAX_M2,
    QWEN3_CODER,
)
from agentrl.errors import ConfigError
from agentrl.runtime.imports import import_object

DIALECTS: dict[str, ToolCallDialect] = {
    dialect.name: dialect
    for dialect in (
        *(HERMES, LLAMA3, GEMMA, QWEN3_CODER, GLM_4_5, GLM_4_7, MISTRAL, MISTRAL_V11, MISTRAL_V3),
        *(GEMMA4, HARMONY, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32, DEEPSEEK_V4),
        *(KIMI_K2, LFM2, MINIMAX_M2, NEMOTRON),
    )
}
TEMPLATES: tuple[str, ...] = tuple(name for name, dialect in DIALECTS.items() if dialect.folder)
"""Names of the templates that agentrl ships."""
ENTRY_POINTS = "agentrl.dialects"
"""Entry-point group in which a distribution names its own."""
OWN_DIALECT = "write a dialect of your own and set policy.dialect: module:NAME (docs/chat.md)"


@cache
def load_dialects() -> Mapping[str, ToolCallDialect]:
    """Return every dialect by name: agentrl's first, then those of installed distributions.

    Raises `ConfigError` for one that cannot be imported, is no dialect or takes another's name.
    """
    dialects = dict(DIALECTS)
    for point in entry_points(group=ENTRY_POINTS):
        dialect = _load_entry_point(point)
        if dialect.name in dialects:
            raise ConfigError(
                f"{point.value} is a dialect named {dialect.name!r}, but there is already one of "
                "this name; rename it, or uninstall its distribution"
            )
        dialects[dialect.name] = dialect
    return dialects


def find_dialect(name: str, *, key: str = "policy.dialect") -> ToolCallDialect:
    """Return the dialect with this name, or the one that `module:NAME` names.

    Raises `ConfigError`, with the config key that says so, for a name nobody has.
    """
    if name in DIALECTS:
        return DIALECTS[name]
    if ":" in name:
        return _check_dialect(import_object(name), named=f"{key} is {name!r}, which")
    dialects = load_dialects()
    if name in dialects:
        return dialects[name]
    near = get_close_matches(name, dialects, n=1)
    others = f"the dialects are {', '.join(dialects)}, or {OWN_DIALECT}"
    meant = f"did you mean {near[0]!r}?" if near else others
    raise ConfigError(f"{key} is {name!r}, which is not a dialect; {meant}")


def _load_entry_point(point: EntryPoint) -> ToolCallDialect:
    try:
        return _check_dialect(point.load(), named=f"the entry point {point.name!r} ({point.value})")
    except (ImportError, AttributeError) as error:
        owner = point.dist.name if point.dist else point.value
        raise ConfigError(
            f"the dialect {point.name!r} of {owner} ({point.value}) cannot be imported: {error}; "
            "fix or uninstall it"
        ) from error


def _check_dialect(found: Any, *, named: str) -> ToolCallDialect:
    if not isinstance(found, ToolCallDialect):
        raise ConfigError(
            f"{named} is a {type(found).__name__}; name an agentrl.chat.dialect.ToolCallDialect"
        )
    return found

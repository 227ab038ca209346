"""Errors by which a program says that the policy played badly: an outcome, and no failure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from agentrl.errors import ConfigError, EnvError

PolicyErrors = Mapping[str, float]
"""Rewards of episodes that end with an error. A key is an exception's qualified name
(`agents.exceptions.MaxTurnsExceeded`), with the beginning of its message behind `: ` where the
name alone says too little, or an exit code of a command (`3`)."""

KNOWN: PolicyErrors = MappingProxyType(
    dict.fromkeys(
        (
            # openai-agents
            "agents.exceptions.MaxTurnsExceeded",
            "agents.exceptions.ModelBehaviorError",
            "agents.exceptions.ModelRefusalError",
            "agents.exceptions.OutputGuardrailTripwireTriggered",
            "agents.exceptions.ToolInputGuardrailTripwireTriggered",
            # pydantic-ai: the same class says that the model's server answered wrongly.
            "pydantic_ai.exceptions.UnexpectedModelBehavior: Exceeded maximum",
            "pydantic_ai.exceptions.UnexpectedModelBehavior: Tool ",
            "pydantic_ai.exceptions.UnexpectedModelBehavior: Received empty model response",
            "pydantic_ai.exceptions.UnexpectedModelBehavior: Output validation failed",
            "pydantic_ai.exceptions.IncompleteToolCall",
            "pydantic_ai.exceptions.OutputTokenLimitExceeded",
            "pydantic_ai.exceptions.UsageLimitExceeded",
            # LangGraph and LangChain
            "langchain.agents.middleware.model_call_limit.ModelCallLimitExceededError",
            "langchain.agents.middleware.tool_call_limit.ToolCallLimitExceededError",
            "langchain.agents.structured_output.MultipleStructuredOutputsError",
            "langchain.agents.structured_output.StructuredOutputValidationError",
            "langchain_core.exceptions.OutputParserException",
            "langgraph.errors.GraphRecursionError",
            # smolagents, whose AgentGenerationError is about the model's server
            "smolagents.utils.AgentMaxStepsError",
            "smolagents.utils.AgentParsingError",
            "smolagents.utils.AgentToolCallError",
            # openai
            "openai.ContentFilterFinishReasonError",
            "openai.LengthFinishReasonError",
        ),
        0.0,
    )
)
"""Of the frameworks that docs/blackbox.md names."""

_KEY = re.compile(r"\d{1,3}|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(: .+)?", re.DOTALL)
_FRAME = re.compile(r'^ +File "[^"\n]*", line \d+', re.MULTILINE)


class ProgramEnded(EnvError):
    """A program in a process of its own ended badly; `lines` say what the end is called."""

    def __init__(self, message: str, *, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.lines = tuple(lines)


def check_errors(given: PolicyErrors) -> PolicyErrors:
    """Return the known errors and the user's own; `ConfigError` for one that is none."""
    for key, reward in given.items():
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - of a config
            raise ConfigError(
                f"policy_errors names {key!r}; a key must be text, so write an exit code in "
                f'quotes: "{key}"'
            )
        if _KEY.fullmatch(key) is None:
            raise ConfigError(
                f"policy_errors names {key!r}; a key must be an exception's qualified name "
                "(package.module.Error), optionally followed by ': ' and the start of its message, "
                "or an exit code of a command"
            )
        if not _is_finite(reward):
            raise ConfigError(
                f"policy_errors assigns {key} the reward {reward!r:.80}, but a reward must be a "
                "finite number"
            )
    return {**KNOWN, **given}


def _is_finite(reward: object) -> bool:
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return False
    try:
        return math.isfinite(reward)
    except OverflowError:
        return False


def find_policy_error(error: BaseException, known: PolicyErrors) -> tuple[str, float] | None:
    """Return the line and the reward of a program's end that the policy brought about, or None."""
    for line in list_error_lines(error):
        # The longest key says most: a message goes before a class.
        for key in sorted(known, key=len, reverse=True):
            if line == key or line.startswith(key if ": " in key else f"{key}:"):
                return line, known[key]
    return None


def list_error_lines(error: BaseException) -> Iterator[str]:
    """Yield what an error is called, as the last line of a traceback says it."""
    if isinstance(error, ProgramEnded):
        yield from error.lines
        return
    for kind in type(error).__mro__:
        yield f"{kind.__module__}.{kind.__qualname__}: {error}"


def name_end(code: int, stderr: str) -> tuple[str, ...]:
    """Return the names of a command's end: its exit code, and the last error of its stderr."""
    line = find_last_error(stderr)
    return (str(code),) if line is None else (str(code), line)


def find_last_error(stderr: str) -> str | None:
    """Return the line behind the last frame of the last traceback, with the message's first line.

    >>> find_last_error('Traceback:\\n  File "a.py", line 1\\n    f()\\nx.E: no')
    'x.E: no'
    """
    frames = list(_FRAME.finditer(stderr))
    if not frames:
        return None
    below = stderr[frames[-1].end() :].splitlines()[1:]
    return next((line.rstrip() for line in below if line and not line.startswith(" ")), None)

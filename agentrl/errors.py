"""The failures agentrl knows, and the one boundary where a failure becomes data.

    AgentrlError
    ├── ConfigError            a config or an argument is wrong; nothing has been done yet
    ├── CheckError             an implementation breaks a promise of its contract
    ├── ForkUnsupported        this world cannot be copied
    ├── LearnError             the trainer cannot go on with what it was given; the run stops
    ├── ToolError              the tool refuses; its text is the model's answer (not a failure)
    └── RolloutError           one trajectory broke; recorded on it, never a reward
        ├── EnvError           the environment raised, or missed a deadline
        │   ├── ContractError  it returned what its contract does not allow
        │   ├── ContextOverflow  it shows more than the policy's context holds
        │   └── WorldLost      what held its world is gone; it can be made again elsewhere
        ├── RequestError       an agent program sent what the policy cannot take
        ├── ToolFailure        a tool raised something other than ToolError, or missed a deadline
        ├── SandboxError       the sandbox is gone or broke its protocol
        ├── VerifierError      a verifier that is not ours gave no verdict
        ├── JudgeError         a model that judges gave no verdict, or one that cannot be read
        ├── WordingError       a function that puts an environment in words is at fault
        ├── EngineError        the policy engine raised, or missed a deadline
        │   ├── EngineLost     the engine is gone, with the request; it can be asked for again
        │   └── WeightsUnproven  the engine computes something else than the trainer
        └── CancelledRollout   somebody stopped the trajectory on purpose

Extension code raises plain Python errors. `blame` attributes them; the episode runner records them
as a `Failed` outcome; everything else lets them rise, but for what `contain` is around.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    import asyncio

SHOWN_CHARS = 2000
"""Of the text of an error that is somebody else's: it is in the record of every such trajectory."""
FailureKind = Literal[
    "env",
    "request",
    "tool",
    "sandbox",
    "verifier",
    "judge",
    "wording",
    "engine",
    "cancelled",
    "stale",
]
"""Kind of a failure, as records and metrics name it. `stale` had become too old to train: nobody's
fault, and no alarm counts it."""


class AgentrlError(Exception):
    """Base of every error that agentrl raises on purpose."""


class ConfigError(AgentrlError, ValueError):
    """A config or an argument is wrong. The text names the value, the rule and the way out.

    A `ValueError` too. It is no failure of a trajectory: it stops the run.
    """


class CheckError(AgentrlError, AssertionError):
    """An implementation breaks a promise of its contract. The text begins with the promise.

    An `AssertionError` too, so that a test runner counts it as a failed test.
    """


class ForkUnsupported(AgentrlError):
    """This world cannot be copied as it is now. It is an answer to `fork`, and no failure."""


class LearnError(AgentrlError, RuntimeError):
    """The trainer cannot go on: a batch that teaches nothing, a reward that is no number, a
    gradient that is not finite, a damaged checkpoint. The run stops and says why."""


class ToolError(AgentrlError):
    """Refusal of a tool: its text is the answer that the model reads and can react to."""


class RolloutError(AgentrlError):
    """One trajectory broke. It is recorded as `Failed` and never trains."""

    kind: ClassVar[FailureKind]
    """Kind of the recorded failure; set by every subclass."""


class EnvError(RolloutError):
    """The environment raised or missed a deadline."""

    kind = "env"


class ContractError(EnvError):
    """The environment returned what its contract does not allow: names promise, value and line."""


class ContextOverflow(EnvError):
    """A conversation is longer than the policy's context; a shorter one can be shown."""


class WorldLost(EnvError):
    """Loss of the worker or machine that held an environment, which itself did nothing wrong."""


class RequestError(RolloutError):
    """An agent program sent a request that the policy cannot take; the text names its fault."""

    kind = "request"


class ToolFailure(RolloutError):
    """A tool raised something other than `ToolError`, or missed a deadline."""

    kind = "tool"


class SandboxError(RolloutError):
    """The sandbox is gone, or broke its protocol."""

    kind = "sandbox"


class VerifierError(RolloutError):
    """A verifier that is not ours gave no verdict: it died, or took too much time or memory."""

    kind = "verifier"


class JudgeError(RolloutError):
    """A model that judges gave no verdict, or one that cannot be read: never a reward of 0."""

    kind = "judge"


class WordingError(RolloutError):
    """A function that puts an environment in words (`describe`, `act`) raised, or returned what
    cannot be shown; the text names the function."""

    kind = "wording"


class EngineError(RolloutError):
    """The policy engine raised or missed a deadline."""

    kind = "engine"


class EngineLost(EngineError):
    """The engine is gone, and with it what a request had sampled; the request did nothing wrong."""


class WeightsUnproven(EngineError):
    """An engine that was given weights is late, or computes something else than the trainer."""


class CancelledRollout(RolloutError):
    """The trajectory was stopped on purpose."""

    kind = "cancelled"


@contextmanager
def first_error() -> Generator[None]:
    """Raise the first error of a task group as itself, with its own cause.

    A context manager for `async with asyncio.TaskGroup()`: whatever the group collects into an
    `ExceptionGroup` leaves the block as the one error that came first, groups in groups too.
    """
    try:
        yield
    except BaseExceptionGroup as broken:
        error: BaseException = broken
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


@contextmanager
def contain(report: Callable[[Exception], None]) -> Generator[None]:
    """Hand an error that escapes this block to a function, and go on behind it.

    For what a run can do without, such as its numbers in another place.

    Args:
        report: Is given the error.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whoever reports it decides
        report(error)


@contextmanager
def blame(
    kind: type[RolloutError],
    what: str,
    *,
    deadline: str = "",
    limit: "asyncio.Timeout | None" = None,
) -> Generator[None]:
    """Attribute whatever escapes this block to `kind`; an error already attributed passes through.

    `ConfigError` passes too: a wrong configuration stops the run instead of failing one trajectory
    after another. So does `ForkUnsupported`: it is an answer, and nothing broke.

    Args:
        kind: Class of the error to raise.
        what: Description of the work in the block; the error's text begins with it.
        deadline: Key that sets the block's deadline, with its value, for the error of a late one.
        limit: Timeout of the block itself, where the work may raise a `TimeoutError` of its own,
            of a socket say. Only once it has expired was the deadline missed.

    Raises:
        RolloutError: An error of the class `kind`, caused by the one that escaped. What is no
            `Exception` becomes one as well, and so does a cancellation that is not of the running
            task; not Ctrl-C, the end of a generator, and a cancellation of the task.
    """
    try:
        yield
    except (RolloutError, ConfigError, ForkUnsupported):
        raise
    except TimeoutError as error:
        import asyncio  # not above: it is half of what `import agentrl` takes

        # That of a timeout comes from the cancellation with which it ended its block; Python's
        # before 3.11.4 does not say so by the cause.
        origin = error.__cause__ or error.__context__
        of_timeout = isinstance(origin, asyncio.CancelledError)
        if not (of_timeout if limit is None else limit.expired()):
            raise kind(f"{what}: {_describe(error)}") from error
        hint = f" ({deadline}); raise it, or find out what is hanging" if deadline else ""
        raise kind(f"{what}: missed its deadline{hint}") from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # else what calls sys.exit would end the run, and well
        if not _is_cancellation(error):
            raise kind(f"{what}: {_describe(error)}") from error
        if not _is_stray():
            raise
        raise kind(
            f"{what}: CancelledError, but nobody cancelled it: it awaited something that was "
            "cancelled, or raised the error itself; catch it there"
        ) from error


def _is_cancellation(error: BaseException) -> bool:
    import asyncio

    return isinstance(error, asyncio.CancelledError)


def _is_stray() -> bool:
    """Return whether a cancellation is not of the task that runs, such as that of one it awaits."""
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and not task.cancelling()


def _describe(error: BaseException) -> str:
    """Return the type and the text of an error; the text may be code of the user's, and raise."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as fault:  # noqa: BLE001 - of `blame`, which must not fail itself
        return f"{name}, whose __str__ raised {type(fault).__name__}"
    cut_count = len(text) - SHOWN_CHARS
    return f"{name}: {text[:SHOWN_CHARS]}" + (f"... ({cut_count} more)" if cut_count > 0 else "")

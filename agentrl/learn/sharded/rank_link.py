"""Link from the leading rank to the others, whoever started them."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentrl.errors import AgentrlError, LearnError
from agentrl.learn.trainer import PolicyTrainer

if TYPE_CHECKING:
    from agentrl.learn.sharded.rank_spec import RankSpec


@dataclass(frozen=True, slots=True)
class RankCommand:
    """A collective of the trainer that all ranks are to take part in."""

    name: str
    arguments: tuple[Any, ...] = ()

    def run(self, trainer: PolicyTrainer) -> None:
        """Take part, as one of those that nobody waits for an answer from."""
        COMMANDS[self.name](trainer, *self.arguments)


def _learn(trainer: PolicyTrainer, batch: Any, keeps_credit: bool) -> None:
    trainer.keeps_credit = keeps_credit
    trainer.learn(batch)


def _forget(trainer: PolicyTrainer, before: int) -> None:
    trainer.forget(before=before)


COMMANDS: Mapping[str, Callable[..., Any]] = {
    "learn": _learn,
    "forget": _forget,
    "weights": PolicyTrainer.weights,
    "evaluation_weights": PolicyTrainer.evaluation_weights,
    "logprobs": PolicyTrainer.logprobs,
    "write_state": PolicyTrainer.write_state,
    "read_state": PolicyTrainer.read_state,
}


@runtime_checkable
class RankLink(Protocol):
    """The way to the other ranks. Owned by the leading trainer, which closes it."""

    def tell(self, command: RankCommand) -> None:
        """Let every other rank do this next; does not wait for them."""
        ...

    def blame(self) -> str | None:
        """Return a message that names an ended rank and its output; None if all of them live."""
        ...

    def close(self) -> None:
        """End the other ranks. Idempotent."""
        ...


@runtime_checkable
class RankLauncher(Protocol):
    """Launcher of the other ranks."""

    @property
    def host(self) -> str:
        """Return the address at which they reach the leading rank."""
        ...

    def start(self, setup: "RankSpec") -> RankLink:
        """Start all of them, given what the leading rank is; they join when it does."""
        ...


@contextmanager
def blame_ended_rank(link: RankLink) -> Generator[None]:
    """Say which rank has ended where that is why a collective failed."""
    try:
        yield
    except AgentrlError:
        raise
    except Exception as error:
        why = link.blame()
        if why is None:
            raise
        raise LearnError(
            f"{why}\nThe other ranks cannot continue without it. The run stops; run the same "
            "command with --resume to continue from its newest checkpoint, with the number of "
            "devices in the config"
        ) from error

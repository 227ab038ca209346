"""The two tasks as agentrl's environments."""

from collections.abc import Iterator, Sequence
from itertools import count

from agentrl.authoring.tool_env import ToolEnv
from agentrl.env import Action, say
from agentrl.message import Message, ToolCall
from agentrl.task import Split, Task
from agentrl.tool import ToolContext, tool
from benchmarks.beside_trl import game


class Hosted(game.Host):
    """The host as a tool."""

    guess = tool(game.Host.guess)

    async def open(self, context: ToolContext) -> None:
        """Take the round from the task."""
        self.round = int(context.task_id)


class HostedLong(Hosted):
    """The host of the long game as a tool."""

    rules = game.LONG


class HostedWaiting(game.WaitingHost):
    """The host that takes its time as a tool."""

    guess = tool(game.WaitingHost.guess)

    async def open(self, context: ToolContext) -> None:
        """Take the round from the task."""
        self.round = int(context.task_id)


class Guessing(ToolEnv):
    """The guessing game."""

    host: type[Hosted | HostedWaiting] = Hosted

    def __init__(self, first_round: int = 0) -> None:
        self._first_round = first_round
        self._rules = self.host.rules
        super().__init__(
            tasks=self._rounds,
            reward=self._worth,
            tools=(self.host,),
            system=self._rules.system,
            gold=self._imitated,
        )

    def _rounds(self, split: Split, seed: int) -> Iterator[Task]:
        del seed
        for number in count(self._first_round if split == "train" else game.HELDOUT_ROUND):
            yield Task(prompt=game.question(number, self._rules), id=str(number))

    def _worth(self, task: Task, messages: Sequence[Message]) -> float:
        del task
        return game.reward(_answers(messages), self._rules)

    def _imitated(self, task: Task, messages: Sequence[Message]) -> Action:
        answers = _answers(messages)
        if game.CORRECT in answers or len(answers) == self._rules.most_guesses:
            return say("The game is over.")
        said = [call.arguments["number"] for m in messages for call in m.tool_calls]
        guess = game.player_guess(int(task.id), said, answers, self._rules)
        call = ToolCall(f"call_{len(answers)}", "guess", {"number": guess})
        return Action(text="", tool_calls=(call,))


class GuessingLong(Guessing):
    """The guessing game with larger numbers and one guess more."""

    host = HostedLong


class GuessingWaiting(Guessing):
    """The same with a host that takes its time."""

    host = HostedWaiting

    def __init__(self, first_round: int = 0, wait_share: float = 1.0) -> None:
        HostedWaiting.wait_share = wait_share
        super().__init__(first_round)


class Writing(ToolEnv):
    """One turn of any words."""

    def __init__(self, first_round: int = 0) -> None:
        self._first_round = first_round
        super().__init__(tasks=self._notes, reward=_wordy)

    def _notes(self, split: Split, seed: int) -> Iterator[Task]:
        del seed
        for number in count(self._first_round if split == "train" else game.HELDOUT_ROUND):
            yield Task(prompt=game.WORDS.format(number=number), id=str(number))


def _wordy(task: Task, messages: Sequence[Message]) -> float:
    del task
    return game.wordy_reward(messages[-1].text)


def _answers(messages: Sequence[Message]) -> list[str]:
    return [m.text for m in messages if m.role == "tool" and m.text in game.ANSWERS]

"""An environment of verifiers, for its own interpreter: the environment speaks first, and again."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf


class EchoData(vf.TaskData):
    words: list[str]


class EchoTask(vf.Task[EchoData]):
    @vf.reward
    async def all_repeated(self, trace) -> float:
        said = [message.content for message in trace.assistant_messages]
        return float(said == self.data.words)


class EchoEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for word in task.data.words:
                if (await interaction.turn(f"Repeat: {word}")).terminated:
                    break


class Echoes(vf.Taskset[EchoTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            words = [f"word{number}", f"other{number}"]
            yield EchoTask(EchoData(name=f"echo {number}", words=words), self.config.task)
            number += 1


__all__ = ["EchoEnv", "Echoes"]

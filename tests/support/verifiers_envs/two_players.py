"""An environment of verifiers, for its own interpreter: two roles, each with its own reward."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf


class NumberData(vf.TaskData):
    number: int


class NumberTask(vf.Task[NumberData]):
    pass


class DuelConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    second: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class DuelEnv(vf.Env[DuelConfig]):
    """The higher number wins; the second player is told the first one's."""

    async def run(self, task, agents):
        first = await agents.first.run(vf.Task(vf.TaskData(idx=0, prompt="Name a number.")))
        prompt = f"Name a number. The other named {first.last_reply}."
        second = await agents.second.run(vf.Task(vf.TaskData(idx=1, prompt=prompt)))
        wins = first.last_reply > second.last_reply
        first.record_reward("won", 1.0 if wins else -1.0)
        second.record_reward("won", -1.0 if wins else 1.0)


class Duels(vf.Taskset[NumberTask, vf.TasksetConfig]):
    def load(self):
        return [NumberTask(NumberData(prompt=f"Duel {n}", number=n)) for n in range(20)]


__all__ = ["DuelEnv", "Duels"]

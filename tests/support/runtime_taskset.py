"""A taskset of verifiers that cannot be scored without a runtime."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf


class NeedyTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def wrote_a_file(self, trace, runtime) -> float:
        return float(bool(await runtime.read("answer")))


class Needy(vf.Taskset[NeedyTask, vf.TasksetConfig]):
    def load(self):
        yield NeedyTask(vf.TaskData(prompt="Write a file."), self.config.task)


__all__ = ["Needy"]

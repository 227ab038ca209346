"""An environment of verifiers, for its own interpreter: one question, two rewards, one metric."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 20)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for a in range(30):
            yield SumTask(
                SumData(prompt=f"What is {a} + 2?", system_prompt="Be brief.", answer=str(a + 2)),
                self.config.task,
            )


__all__ = ["Sums"]

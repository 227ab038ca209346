"""A taskset of verifiers, for its own interpreter: say a word twice."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf


class WordData(vf.TaskData):
    word: str


class WordTask(vf.Task[WordData]):
    @vf.reward
    async def said_twice(self, trace) -> float:
        return float(trace.last_reply == f"{self.data.word} {self.data.word}")

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 20)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Words(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        for number in range(50):
            word = f"word{number}"
            yield WordTask(
                WordData(prompt=f"Say {word} twice.", system_prompt="Be brief.", word=word),
                self.config.task,
            )


__all__ = ["Words"]

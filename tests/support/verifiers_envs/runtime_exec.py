"""An environment of verifiers, for its own interpreter: what was written is run to be judged."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf


class ProgramData(vf.TaskData):
    printed: str


class ProgramTask(vf.Task[ProgramData]):
    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("place.txt", b"here")

    @vf.metric
    async def passed(self, trace, runtime: vf.Runtime) -> float:
        await runtime.write("program.py", trace.last_reply.encode())
        ran = await runtime.run(["python3", "program.py"], {})
        return float(ran.exit_code == 0 and ran.stdout.strip() == self.data.printed)

    @vf.reward
    async def right(self, trace) -> float:
        return trace.metrics["passed"]


class Programs(vf.Taskset[ProgramTask, vf.TasksetConfig]):
    def load(self):
        return [
            ProgramTask(ProgramData(prompt=f"Print {n}.", printed=str(n)), self.config.task)
            for n in range(20)
        ]


__all__ = ["Programs"]

"""An environment of verifiers, for its own interpreter: hooks stop it and rewrite what is said."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf


class GuardedTask(vf.Task):
    @vf.stop
    def at_halt(self, response: vf.Response) -> bool:
        return "HALT" in (response.message.content or "")

    @vf.intercept
    def hide(self, response: vf.Response) -> vf.Response | None:
        if "SECRET" not in (response.message.content or ""):
            return None
        return response.model_copy(update={"message": vf.AssistantMessage(content="hidden")})

    @vf.reward
    async def guarded(self, trace) -> float:
        return float(trace.stop_condition == "at_halt") + 2.0 * float(trace.last_reply == "hidden")


class Guarded(vf.Taskset[GuardedTask, vf.TasksetConfig]):
    def load(self):
        return [
            GuardedTask(vf.TaskData(prompt=f"Say it ({n})."), self.config.task) for n in range(20)
        ]


__all__ = ["Guarded"]

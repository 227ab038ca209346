"""An environment of verifiers, for its own interpreter: the answer is behind a tool's server."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf

CAPITALS = {f"land{number}": f"town{number}" for number in range(20)}


class AtlasToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "atlas"

    @vf.tool
    def capital(self, name: str) -> str:
        """Look up the capital of a country."""
        return CAPITALS.get(name, "unknown")


class CapitalConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class CapitalData(vf.TaskData):
    answer: str


class CapitalTask(vf.Task[CapitalData, vf.State, CapitalConfig]):
    @classmethod
    def toolsets(cls, config):
        return [AtlasToolset(config.tools)]

    @vf.reward
    async def named(self, trace) -> float:
        return float(bool(trace.tool_messages) and self.data.answer in trace.last_reply)


class AtlasConfig(vf.TasksetConfig):
    task: CapitalConfig = CapitalConfig()


class Atlas(vf.Taskset[CapitalTask, AtlasConfig]):
    def load(self):
        return [
            CapitalTask(
                CapitalData(prompt=f"The capital of {name}?", answer=town), self.config.task
            )
            for name, town in CAPITALS.items()
        ]


__all__ = ["Atlas"]

if __name__ == "__main__":
    AtlasToolset.run()

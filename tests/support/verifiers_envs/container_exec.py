"""An environment of verifiers, for its own interpreter: its program runs in a container."""

# pyright: basic, reportMissingImports=false
import verifiers.v1 as vf

PROGRAM = """
import json, subprocess, sys, urllib.request
url, key, prompt = sys.argv[1:]
body = {"model": "any", "messages": [{"role": "user", "content": prompt}]}
head = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
asked = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), head)
told = json.loads(urllib.request.urlopen(asked).read())
subprocess.run(["sh", "-c", told["choices"][0]["message"]["content"]])
"""


class ShellConfig(vf.HarnessConfig):
    pass


class ShellHarness(vf.Harness[ShellConfig]):
    EXECUTES_CODE = True
    NEEDS_CONTAINER = True

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
    ):
        _, prompt = self.resolve_prompt(data)
        return await runtime.run_program(["python3", "-c", PROGRAM, endpoint, secret, prompt], {})


class WrittenData(vf.TaskData):
    answer: str


class WrittenTask(vf.Task[WrittenData]):
    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("secret.txt", self.data.answer.encode())

    @vf.reward
    async def right(self, trace, runtime: vf.Runtime) -> float:
        ran = await runtime.run(["cat", "out.txt"], {})
        return float(ran.stdout.strip() == self.data.answer)


class Written(vf.Taskset[WrittenTask, vf.TasksetConfig]):
    def load(self):
        return [
            WrittenTask(
                WrittenData(prompt=f"Copy secret.txt to out.txt ({n}).", answer=f"plum{n}"),
                self.config.task,
            )
            for n in range(20)
        ]


__all__ = ["ShellConfig", "ShellHarness", "Written"]

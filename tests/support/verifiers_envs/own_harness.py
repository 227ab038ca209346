"""An environment of verifiers, for its own interpreter: its own program asks, in two contexts."""

# pyright: basic, reportMissingImports=false
import sys

import verifiers.v1 as vf

PROGRAM = """
import sys, urllib.request, json
url, key, prompt = sys.argv[1:]
def ask(text):
    body = {"model": "any", "messages": [{"role": "user", "content": text}]}
    head = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    asked = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), head)
    told = json.loads(urllib.request.urlopen(asked).read())
    return told["choices"][0]["message"]["content"]
note = ask(prompt)
ask("Your note: " + note + ". Answer.")
"""


class NotingConfig(vf.HarnessConfig):
    pass


class NotingHarness(vf.Harness[NotingConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
    ):
        _, prompt = self.resolve_prompt(data)
        argv = [sys.executable, "-c", PROGRAM, endpoint, secret, prompt]
        return await runtime.run_program(argv, {})


class NotedData(vf.TaskData):
    answer: str


class NotedTask(vf.Task[NotedData]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.num_branches == 2 and trace.last_reply == self.data.answer)


class Noted(vf.Taskset[NotedTask, vf.TasksetConfig]):
    def load(self):
        return [
            NotedTask(NotedData(prompt=f"Note {n}.", answer=str(n)), self.config.task)
            for n in range(20)
        ]


__all__ = ["Noted", "NotingConfig", "NotingHarness"]

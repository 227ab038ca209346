import agentrl


@agentrl.tool
def multiply(a: int, b: int) -> int:
    """Return a times b."""
    return a * b


def tasks(split: agentrl.Split, seed: int):
    for a, b in agentrl.sample_pairs(split, seed):
        yield agentrl.Task(prompt=f"What is {a} * {b}?", answer=str(a * b), data={"a": a, "b": b})


def gold(task: agentrl.Task, seen):
    return agentrl.call("multiply", **task.data) if len(seen) == 1 else agentrl.say(seen[-1].text)


agentrl.register_tool_env(
    "demo/Times-v0", tools=[multiply], tasks=tasks, gold=gold, reward=agentrl.rewards.exact_answer
)
changes = {"env.id": "demo/Times-v0", "env.kwargs": {}, "run.name": "hello"}
with agentrl.show_progress() as progress:
    result = agentrl.train("quickstart", changes, progress=progress)
print(f"pass@1 {result.before['pass@1']:.2f} before, {result.after['pass@1']:.2f} after")

"""Tasks of Inspect, for its own interpreter."""

# pyright: basic, reportMissingImports=false
from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
from inspect_ai.scorer import match, pass_at
from inspect_ai.solver import generate


@task
def sums(first: int = 0):
    numbers = range(first, first + 30)
    samples = [Sample(id=f"sum-{a}", input=f"What is {a} + 2?", target=str(a + 2)) for a in numbers]
    return Task(dataset=samples, solver=generate(), scorer=match())


@task
def sums_told():
    told = [
        ChatMessageUser(content="What is 1 + 1?"),
        ChatMessageAssistant(content="2"),
        ChatMessageUser(content="What is 2 + 2?"),
    ]
    samples = [Sample(input=told, target="4")]
    return Task(dataset=samples, solver=generate(), scorer=match(), epochs=Epochs(5, pass_at(5)))


@task
def sums_of_another():
    return Task(dataset=[Sample("2 + 2", target="4")], scorer=match(), model="mockllm/model")

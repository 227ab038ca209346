"""Tasks of Inspect, for its own interpreter."""

# pyright: basic, reportMissingImports=false
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def sums(first: int = 0):
    numbers = range(first, first + 30)
    samples = [Sample(id=f"sum-{a}", input=f"What is {a} + 2?", target=str(a + 2)) for a in numbers]
    return Task(dataset=samples, solver=generate(), scorer=match())

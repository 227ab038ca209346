"""Tasks of Inspect whose scores are several, unclear, late or missing, for its own interpreter."""

# pyright: basic, reportMissingImports=false
import os
import tempfile

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import (
    Score,
    accuracy,
    exact,
    includes,
    match,
    mean,
    model_graded_qa,
    multi_scorer,
    scorer,
)
from inspect_ai.solver import generate


def plain(scorer):
    samples = [Sample(input=f"Say something ({n}).", target="something") for n in range(20)]
    return Task(dataset=samples, solver=generate(), scorer=scorer)


@scorer(metrics={"length": [mean()], "said": [mean()]})
def measured():
    async def score(state, target):
        said = state.output.completion
        return Score(value={"length": len(said) / 100, "said": float(bool(said))})

    return score


@scorer(metrics=[accuracy()])
def raising():
    async def score(state, target):
        raise RuntimeError("this scorer is broken")

    return score


@scorer(metrics=[accuracy()])
def ending():
    async def score(state, target):
        tempfile.mkdtemp()
        os._exit(0 if "agentrl-hosted-" in tempfile.gettempdir() else 1)

    return score


@scorer(metrics=[accuracy()])
def unclear():
    async def score(state, target):
        return Score(value="rather good")

    return score


@scorer(metrics=[accuracy()])
def asking():
    async def score(state, target):
        graded = await get_model().generate("Was it good?")
        return Score(value="C" if graded.completion else "I")

    return score


@task
def measured_task():
    return plain(measured())


@task
def ending_task():
    return plain(ending())


@task
def raising_task():
    return plain(raising())


@task
def unclear_task():
    return plain(unclear())


@task
def asking_task():
    return plain(asking())


@task
def graded_task():
    return plain(model_graded_qa())


def untargeted(*scorers):
    samples = [Sample(id="told", input="Say plum.", target="plum"), Sample(id="bare", input="Hi.")]
    return Task(dataset=samples, solver=generate(), scorer=[*scorers])


@task
def untargeted_task():
    return untargeted(match(), measured())


@task
def untargeted_parts_task():
    return untargeted(multi_scorer([exact(), includes()], "max"))

"""Tasks of Inspect with tools, for its own interpreter."""

# pyright: basic, reportMissingImports=false
from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import basic_agent
from inspect_ai.tool import bash, tool

STOCK = {"nails": "seventeen", "screws": "ninety"}


@tool
def stock():
    async def execute(item: str):
        """Look up how many there are.

        Args:
            item: Name of the item.
        """
        return STOCK.get(item, "none")

    return execute


def samples():
    return [Sample(id=item, input=f"How many {item}?", target=STOCK[item]) for item in STOCK]


@task
def looked_up():
    return Task(dataset=samples(), solver=react(tools=[stock()]), scorer=includes())


@task
def looked_up_basically():
    solver = basic_agent(tools=[stock()], message_limit=8)
    return Task(dataset=samples(), solver=solver, scorer=includes())


@task
def in_a_sandbox():
    return Task(
        dataset=[
            Sample(
                id="note", input="What is in note.txt?", target="plum", files={"note.txt": "plum"}
            )
        ],
        solver=react(tools=[bash(timeout=30)]),
        scorer=includes(),
        sandbox="local",
    )


@task
def in_a_container():
    return Task(
        dataset=samples(), solver=react(tools=[bash()]), scorer=includes(), sandbox="docker"
    )

"""A file of tasks that cannot be imported."""

# pyright: basic, reportMissingImports=false
from inspect_ai import task


@task
def never():
    return None


raise OSError("no disk for tasks")

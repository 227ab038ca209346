"""Self-check of a machine: what training needs of its device, tried out and measured.

catalogue   the checks, in their order: what each needs, and for how long it may run
runner      starts each check in a process of its own, and writes the report after each
__main__    that process: imports one check, sends figures while it goes on, and a verdict
context     what a check is given, and the exceptions with which it ends
report      results as values, as JSON and without what names a user or a machine
checks/     the checks themselves, which import torch
"""

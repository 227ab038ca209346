"""Self-check of a machine: what training needs of its device, tried out and measured.

catalogue         the checks, in their order: what each needs, and for how long it may run
runner            runs one after the other, and writes the report after each
check_processes   starts and ends the process of a check, and of the fork server
fork_server       that process: imports what the checks need once, and forks for each
__main__          the process of a check: sends figures while it goes on, and a verdict
context           what a check is given, and the exceptions with which it ends
report            results as values, as JSON and without what names a user or a machine
checks/           the checks themselves, which import torch
"""

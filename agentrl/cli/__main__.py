"""`python -m agentrl.cli`."""

from agentrl.cli import main

main()

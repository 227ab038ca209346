"""`python -m agentrl.cli`."""

from agentrl.cli.app import main

main()

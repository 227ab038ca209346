"""`python -m agentrl` is `agentrl`; torchrun starts modules."""

from agentrl.cli.app import main

if __name__ == "__main__":
    main()

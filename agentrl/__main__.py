"""`python -m agentrl` is `agentrl`; torchrun starts modules."""

from agentrl.cli import main

if __name__ == "__main__":
    main()

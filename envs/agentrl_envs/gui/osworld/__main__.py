"""Say which tasks of a folder can be played here: `python -m agentrl_envs.gui.osworld PATH`."""

import argparse
import sys

from agentrl.errors import ConfigError
from agentrl_envs.gui.osworld.reading import read_tasks


def main() -> int:
    """Print the report; 2 where there are no tasks."""
    parser = argparse.ArgumentParser(prog="python -m agentrl_envs.gui.osworld", description=__doc__)
    parser.add_argument("path", help="a task file of OSWorld's format, or a folder with such files")
    parser.add_argument("--cache", default="", help="where OSWorld keeps what tasks download")
    args = parser.parse_args()
    try:
        sys.stdout.write(f"{read_tasks(args.path, args.cache).report}\n")
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

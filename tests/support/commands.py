"""Commands of ours, run in the process of a test."""

import sys

import pytest

from agentrl.cli.app import main


def agentrl(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, stdout and stderr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["agentrl", *arguments])
        patch.setattr(sys, "path", [*sys.path])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err

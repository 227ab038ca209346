"""A run's numbers in TensorBoard's event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""In a run's folder."""


class TensorBoardSink:
    """Writes every line of the metrics; a resumed run replaces the steps that it does again."""

    key = "metrics.tensorboard"

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` where its folder cannot be made."""
        self._folder = folder / FOLDER
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"TensorBoard's folder {self._folder} cannot be made ({error}); remove what is in "
                f"its place, or set {self.key} to false"
            ) from error
        self._board: SummaryWriter | None = None
        self._is_closed = False

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        if self._is_closed:
            return
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._folder), purge_step=step, flush_secs=10)
        for name, value in figures.items():
            printable = name.encode(errors="backslashreplace").decode()
            self._board.add_scalar(printable, value, step)

    def close(self) -> None:
        board, self._board, self._is_closed = self._board, None, True
        if board is not None:
            board.close()

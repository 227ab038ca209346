"""The trainer that a run holds when there are several devices: it leads the other ranks."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from agentrl.learn.batch import TrainingBatch
from agentrl.learn.sharded.rank_link import RankCommand, RankLink, blame_ended_rank
from agentrl.learn.trainer import PolicyTrainer


class RankZeroTrainer(PolicyTrainer):
    """The trainer of rank 0. Each of its collectives is announced to the others first."""

    def __init__(self, *args: Any, link: RankLink, **kwargs: Any) -> None:
        self._link = link
        self._announced = False
        with blame_ended_rank(self._link):
            super().__init__(*args, **kwargs)

    def learn(self, batch: TrainingBatch) -> dict[str, float]:
        with self._together("learn", batch, self.keeps_credit):
            return super().learn(batch)

    def forget(self, *, before: int) -> None:
        with self._together("forget", before):
            super().forget(before=before)

    def weights(self) -> Mapping[str, Tensor]:
        with self._together("weights"):
            return super().weights()

    def evaluation_weights(self) -> Mapping[str, Tensor]:
        with self._together("evaluation_weights"):
            return super().evaluation_weights()

    def logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        with self._together("logprobs", tuple(token_ids)):
            return super().logprobs(token_ids)

    def write_state(self, folder: Path) -> None:
        with self._together("write_state", folder):
            super().write_state(folder)

    def read_state(self, checkpoint: Path) -> None:
        with self._together("read_state", checkpoint):
            super().read_state(checkpoint)

    def close(self) -> None:
        self._link.close()

    @contextmanager
    def _together(self, name: str, *arguments: Any) -> Generator[None]:
        """Do with all ranks what the block does; what it calls in turn needs no announcement."""
        if self._announced:
            yield
            return
        self._announced = True
        try:
            with blame_ended_rank(self._link):
                self._link.tell(RankCommand(name, arguments))
                yield
        finally:
            self._announced = False

"""transformers draws progress bars of its own; ours are the caller's."""

from collections.abc import Generator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_bars() -> Generator[None]:
    """Keep transformers from drawing progress bars inside the block."""
    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()

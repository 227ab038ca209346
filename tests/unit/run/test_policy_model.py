"""A tokenizer and a model that do not go together are refused before a token is looked up.

Mutants seen caught: one row too few allowed; the tokens that end a turn left out.
"""

import pytest

from agentrl.errors import ConfigError
from agentrl.run.policy_model import check_vocabulary


@pytest.mark.parametrize(
    ("rows", "stops", "fault"),
    [
        (300, {2}, ""),
        (304, {2, 303}, ""),
        (299, {2}, "token 299, but whose model has 299 embeddings"),
        (303, {2, 303}, "token 303, but whose model has 303 embeddings"),
    ],
)
def test_a_model_has_a_row_for_every_token(rows: int, stops: set[int], fault: str) -> None:
    if not fault:
        check_vocabulary(rows, 300, stops, path="models/mine")
        return
    with pytest.raises(ConfigError, match=rf"policy.path is 'models/mine', .*{fault}; use the"):
        check_vocabulary(rows, 300, stops, path="models/mine")

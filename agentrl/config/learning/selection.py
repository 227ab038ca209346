"""The selection slot: which samples and tokens of a batch train, once their credit is known."""

from typing import Annotated

from pydantic import Discriminator

from agentrl.config.learning.custom import CustomMethod

AnySelection = Annotated[CustomMethod, Discriminator("name")]

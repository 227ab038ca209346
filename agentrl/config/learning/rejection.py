"""The rejection slot: tokens and sequences that do not train because they are too far off."""

from typing import Annotated

from pydantic import Discriminator

from agentrl.config.learning.custom import CustomMethod

AnyRejection = Annotated[CustomMethod, Discriminator("name")]

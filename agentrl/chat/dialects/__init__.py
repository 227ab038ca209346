"""The dialects agentrl knows, by name."""

from agentrl.chat.dialect import Dialect
from agentrl.chat.dialects.hermes import HERMES
from agentrl.chat.dialects.llama3 import LLAMA3

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (HERMES, LLAMA3)}

"""Kinds of the images that `agentrl image build` makes, and what they are built on."""

from typing import Literal

Kind = Literal["sandbox", "desktop"]
Base = Literal["bootstrap", "slim"]

"""The words that parameters take in more than one place. They need no tensor, so that methods can be listed without."""

from typing import Literal

ChunkScore = Literal["representation", "mean", "submeans", "bounds", "token_max"]
Share = Literal["head", "group", "layer"]

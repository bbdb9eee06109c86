"""The values of parameters that several modules share; this module does not import torch."""

from typing import Literal

ChunkScore = Literal["representation", "mean", "submeans", "bounds", "token_max"]
Share = Literal["head", "group", "layer"]
Dense = Literal["window", "kept"] | int

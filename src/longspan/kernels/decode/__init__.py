"""All that one new token of a layer takes, in one call of C: what it brings is stored, and it attends.

The other folders of kernels have a call for each part of it; at one token, to make those takes longer than to run them.
"""

from longspan.kernels.decode.compiled import BandRange, ChosenPositions, DecodeKernel, ScoreSpec

__all__ = ["BandRange", "ChosenPositions", "DecodeKernel", "ScoreSpec"]

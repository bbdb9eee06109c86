"""Weights at rest: matrices that stay in codes of 4 or 8 bits in memory, and the modules that compute with them."""

PACKED_AS = "longspan_packed_as"  # the attribute of a model that was loaded with packed matrices: their form

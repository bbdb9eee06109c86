"""Weights at rest: matrices that stay in codes of 4 or 8 bits in memory, and the modules that compute with them."""

FORMS = {"as-is": None, "int8": 8, "int4": 4}  # of packed matrices, with the bits of a code
PACKED_AS = "longspan_packed_as"  # the attribute of a model that was loaded with packed matrices: their form

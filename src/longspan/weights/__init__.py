"""Weights at rest: matrices that stay in codes of 4 or 8 bits in memory, and the modules that compute with them."""

FORMS = {"as-is": None, "int8": 8, "int4": 4}  # of packed matrices, with the bits of a code
PACKED_AS = "longspan_packed_as"  # the attribute of a model that was loaded with packed matrices: their form
MIXED = "mixed"  # a dtype: float32 numbers, products of many rows in bfloat16, queries, keys and values in float16
KEPT_AS = "longspan_kept_as"  # the attribute of such a model: the torch dtype of its queries, keys and values

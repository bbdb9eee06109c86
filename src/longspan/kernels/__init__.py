"""Kernels: each folder holds one contract (its ``__init__``), a reference and the implementations of it.

Implementations of a kernel never import each other. They share ``cpu`` (the library of C), ``gpu`` (parts of Triton
kernels), ``layout`` (how tensors lie in memory), ``softmax`` (scores, and parts that are merged), ``once`` (what layers
share) and ``dispatch``, which says what ``impl`` means; ``backends`` lists the backends.
"""

from longspan.kernels import backends as backends

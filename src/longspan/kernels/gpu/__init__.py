"""Code shared by Triton kernels.

``tiles`` has sizes, and whether kernels can run; ``launch`` what launches share; ``primitives`` parts of kernels.
"""

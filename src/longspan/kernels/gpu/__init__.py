"""What the Triton kernels share: ``tiles`` (sizes, and whether they can run) and ``primitives`` (parts of kernels)."""

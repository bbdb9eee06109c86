"""The ways to run a layer's attention: any tokens, one token in a single call of C, one token for a CUDA graph."""

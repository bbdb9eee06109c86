"""Selections whose queries choose keys by looking at them, each with its selector and its index beside it.

LongHeads: ``chunks`` and ``chunk_index``. ESA: ``tokens`` and ``token_index``. InfLLM: ``blocks`` and ``block_index``.
LM-Infinite: ``top_k_tokens``. These load the kernels; ``base`` alone does not load torch.
"""

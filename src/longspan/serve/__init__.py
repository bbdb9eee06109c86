"""``longspan serve``: OpenAI's API over one extended model, on documents that stay read.

One thread owns the model (``engine``); requests and readings take turns there: a token of all requests, or a prefill
chunk. All else is asyncio: ``app`` has the routes, ``run`` the process. It takes the extra ``serve``, and nothing else
imports it.
"""

"""Decoding: propose, verify and commit, batched and lossless (method 1); see :mod:`draftlab.decode.loop`."""

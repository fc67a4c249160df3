"""Serving experiments: a continuous-batching engine, traffic, and a simulator of the same (method 5 and 6)."""

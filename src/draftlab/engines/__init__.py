"""Driving real engines with exported drafters: what they load, what they write, what they accept, how fast."""

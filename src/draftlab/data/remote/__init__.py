"""Answers of servers that run the target: which are well, what is asked, whether they run it, and what is written."""

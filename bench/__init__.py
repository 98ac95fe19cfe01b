"""Measures this project against other job queues on the same machine, in one run."""

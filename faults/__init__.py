"""Faults: producers, workers, the API and PostgreSQL as processes, which are killed, paused, cut off and filled up
by a seeded schedule, and a checker that reads the whole history afterwards. `python -m faults`, or `make faults`."""

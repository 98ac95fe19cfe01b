"""A sheet of ideas in, a short film for each out: a script by a model, then pictures, each at the cheapest.

`app.py` has the rows, the tasks and the bulk job, `scripts.py` what a model is asked and what is made of its
answer, `films.py` the drawing, which runs in a process of its own. `sql/` has the providers with their
prices, and views by which rows, jobs and costs can be read as tables.
"""

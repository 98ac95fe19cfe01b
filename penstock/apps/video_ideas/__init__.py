"""Makes a short film for each row of a sheet: a script by a language model, then rendered pictures.

Both steps run at the cheapest provider that supports the row's options.

`app.py` has the rows, the tasks and the bulk job, `scripts.py` the prompt and the parsing of its answer,
`films.py` the rendering, which runs in a subprocess. `sql/` has the providers with their prices, and views of
rows, jobs and costs.
"""

"""A library of books and notes on many devices, offline first, with a managed model that finds ideas.

`app.py` has the tasks, the bulk type and the HTTP functions, `managed.py` the calls of the managed model,
`ideas.py` the canon and the parsing of answers, `billing.py` the checkout, `pages.py` the dashboard pages,
`settings.py` the environment variables, and `sql/` the tables and rules. `device/` is the library for
devices.
"""

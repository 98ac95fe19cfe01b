"""A library of books and notes on many devices, offline first, with a managed model that finds ideas.

`instance.py` has the app object, `app.py` the tasks, the bulk type and the HTTP functions, `proxy.py` and
`managed.py` the calls of the managed model, `prompts.py` its prompts, `ideas.py` the canon and the parsing of
answers, `images.py` and `billing.py` further functions, `pages.py` the dashboard pages, `settings.py` the
environment variables, `demo.py` two devices, and `sql/` the tables and rules. `device/` is the library for
devices, `web/` a client in the browser.
"""

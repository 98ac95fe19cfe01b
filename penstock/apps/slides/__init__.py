"""Makes thumbnails of an event's slides with CloudConvert, or with LibreOffice on this machine.

`app.py` has the tasks, the webhook and the HTTP functions, `pages.py` the dashboard pages, `cloudconvert.py`
the client, `local.py` the converter of this machine, `settings.py` the environment variables, `samples.py`
and `demo.py` the demo, and `sql/` the tables, the quota, the toggle and the states of a thumbnail.
"""

"""Makes a book from a list of chapters: writes, typesets and records each chapter, then binds the book.

`app.py` has the tasks and the job, `settings.py` the environment variables, `writing.py` and `speech.py` the
calls to providers. `pages.py` and `sound.py` make the documents in subprocesses of the worker.
"""

from importlib.util import find_spec

_PACKAGES = ("av", "espeakng_loader", "lameenc", "openai", "pypdfium2", "typst")
if missing := [name for name in _PACKAGES if find_spec(name) is None]:
    # Fail on import, before a worker claims the first task.
    raise ImportError(f"packages not installed: {', '.join(missing)}. Run: pip install 'penstock[apps]'")

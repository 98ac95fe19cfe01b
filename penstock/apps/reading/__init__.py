"""A book from a list of chapters: each is written, typeset and read aloud; then all are bound.

`app.py` has the tasks and the job, `settings.py` what the environment says, `writing.py` and `speech.py` the
calls to providers. `pages.py` and `sound.py` make the documents, in processes of the worker's.
"""

from importlib.util import find_spec

_PACKAGES = ("av", "espeakng_loader", "lameenc", "openai", "pypdfium2", "typst")
if missing := [name for name in _PACKAGES if find_spec(name) is None]:
    # Told before a worker takes the first task, and not by each of them.
    raise ImportError(f"{', '.join(missing)} not found: pip install 'penstock[apps]'")

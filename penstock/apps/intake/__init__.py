"""Takes in documents about patients: a safe upload, then scan, OCR, layout and three AI passes.

`app.py` has the tasks and jobs, `uploads.py` the HTTP functions. `scanning.py`, `reading.py` and `layout.py`
run in subprocesses of the worker; `passes.py` has the prompts and the schemas of the answers, `models.py` the
calls to providers. `sql/` has the app's tables, and the rules of uploads, results and usage.
"""

from importlib.util import find_spec

_PACKAGES = ("openai", "PIL", "pypdfium2", "typst")
if missing := [name for name in _PACKAGES if find_spec(name) is None]:
    # Fail on import, before a worker claims the first task.
    raise ImportError(f"packages not installed: {', '.join(missing)}. Run: pip install 'penstock[apps]'")

"""Finds an app by the name that the command line is given: MODULE:APP."""

from __future__ import annotations

import importlib
import sys

from penstock.errors import Invalid
from penstock.sdk.app import App


def load(path: str) -> App:
    """The app that `module:attribute` names."""
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as error:
        raise Invalid(
            f"{path!r} cannot be loaded: {error}",
            hint="Name it as module:attribute, such as mysite.jobs:app.",
        ) from error
    if not isinstance(found, App):
        raise Invalid(f"{path!r} is not an App (it is a {type(found).__name__})")
    found.path = path
    return found

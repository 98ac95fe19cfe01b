"""What an app adds to the platform besides tasks: HTTP functions, dashboard pages, uploads, prompts."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from penstock.postgres import db
from penstock.sdk.functions import Functions
from penstock.sdk.operations import Operations
from penstock.sdk.pages import Pages
from penstock.sdk.prompts import DeclaredPrompt, Prompts
from penstock.sdk.uploads import Uploads


class Extensions(Functions, Pages, Uploads):
    """The part of an app that extends the API and the dashboard."""

    def __init__(self, schema: str | None) -> None:
        Functions.__init__(self)
        Pages.__init__(self, schema)
        Uploads.__init__(self)
        self.operations = Operations()
        """The providers whose operations workers reconcile."""
        self._is_declared = False
        self.prompts = Prompts(self.connections, self.block)
        """What the app knows of the versions of its prompts."""

    def prompt(
        self, name: str, body: str, *, model: str | None = None, max_tokens: int | None = None
    ) -> DeclaredPrompt:
        """Declare a prompt; `{{word}}` in the body is a variable.

        These values are version 0: they are used until another version is activated, and whenever the
        database cannot answer.
        """
        self._is_declared = False
        return self.prompts.declare(name, body, model, max_tokens)

    def connections(self) -> AbstractAsyncContextManager[db.Pool]:
        """The connections of the running event loop."""
        raise NotImplementedError

    def block(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine for synchronous code."""
        raise NotImplementedError

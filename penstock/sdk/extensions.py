"""What an app adds to the platform besides tasks and jobs: HTTP functions, dashboard pages, uploads."""

from __future__ import annotations

from penstock.sdk.functions import Functions
from penstock.sdk.operations import Operations
from penstock.sdk.pages import Pages
from penstock.sdk.uploads import Uploads


class Extensions(Functions, Pages, Uploads):
    """The part of an app that extends the API and the dashboard."""

    def __init__(self, schema: str | None) -> None:
        Functions.__init__(self)
        Pages.__init__(self, schema)
        Uploads.__init__(self)
        self.operations = Operations()
        """The providers whose operations workers reconcile."""

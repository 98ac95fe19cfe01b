"""Dashboard pages of an app: lists of one of its views, with actions that call its SQL functions.

app.page("loans", "Loans", source="loan_list", columns=["book", "status"], key="id",
         filters=["status"], actions=[PageAction("return", "Return", "return_book", "p_loan_id")])

The dashboard draws them, so an app brings no templates. It reads and calls under the viewer's role: grants
and policies of the app's schema decide what a viewer sees and changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Invalid

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_FILTER = re.compile(r"[a-z_]{1,63}")


@dataclass(frozen=True, slots=True)
class PageAction:
    """A button in each row that calls a function of the app's schema, after a confirmation."""

    name: str
    title: str
    """The text of the button: a verb."""
    function: str
    argument: str
    """The argument that gets the key of the row."""
    asks: str = ""
    """The question of the confirmation; `{column}` is replaced by the row's value."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fixed values of further arguments."""
    when: Mapping[str, Collection[Any]] = field(default_factory=dict[str, Collection[Any]])
    """Shows the button only in rows whose columns have one of these values."""

    def __post_init__(self) -> None:
        _check(_NAME, self.name, "an action's name", "lower-case letters, digits and -")
        for name in (self.function, self.argument, *self.values, *self.when):
            _check(_COLUMN, name, f"a name in the action {self.name}", "letters, digits and _")
        if not self.title.strip():
            raise Invalid(f"the action {self.name} needs a title", details={"field": "title"})

    def is_shown(self, row: Mapping[str, Any]) -> bool:
        """Whether this row has the button."""
        return all(row.get(name) in allowed for name, allowed in self.when.items())

    def question(self, row: Mapping[str, Any]) -> str:
        """The question of the confirmation for this row."""
        text = self.asks or f"{self.title}?"
        return re.sub(r"\{(\w+)\}", lambda found: str(row.get(found[1], found[0])), text)


@dataclass(frozen=True, slots=True)
class AppPage:
    """A page that an app declared."""

    name: str
    title: str
    source: str
    columns: Mapping[str, str]
    """The titles of the columns, by name."""
    key: str
    filters: tuple[str, ...]
    actions: Mapping[str, PageAction]
    links: Mapping[str, str]
    files: frozenset[str]
    order: str | None
    description: str
    is_for_operators: bool
    packs: str | None
    """The meter whose packs the page sells."""

    @property
    def read_columns(self) -> list[str]:
        """The columns that the list reads: those it shows, and those that its actions and order need."""
        needed = [name for action in self.actions.values() for name in _columns_of(action)]
        order = [] if self.order is None else [self.order]
        return list(dict.fromkeys([*self.columns, self.key, *order, *needed]))


def _columns_of(action: PageAction) -> list[str]:
    return [*action.when, *re.findall(r"\{(\w+)\}", action.asks)]


class Pages:
    """The part of an app that declares dashboard pages."""

    def __init__(self, schema: str | None) -> None:
        self._pages_schema = schema
        self.pages: dict[str, AppPage] = {}

    def page(
        self,
        name: str,
        title: str,
        *,
        source: str,
        columns: Sequence[str] | Mapping[str, str],
        key: str,
        filters: Sequence[str] = (),
        actions: Sequence[PageAction] = (),
        links: Mapping[str, str] | None = None,
        files: Collection[str] = (),
        order: str | None = None,
        description: str = "",
        is_for_operators: bool = False,
        packs: str | None = None,
    ) -> None:
        """Declare a dashboard page that lists a view or table of the app's schema.

        `columns`: the names to show, or names with their titles. `key`: a column whose values are unique.
        `filters`: columns that the filter box accepts. `links`: addresses within the dashboard by column,
        such as `{"job_id": "/jobs/{}"}`. `files`: columns with the id of an artifact; images are shown.
        `order`: the column to sort by, largest first (default: the key). `packs`: a meter whose packs the
        page sells to owners and admins.
        """
        if self._pages_schema is None:
            raise Invalid("pages need an app with a schema", details={"field": "schema"})
        _check(_NAME, name, "a page's name", "lower-case letters, digits and -")
        if name in self.pages:
            raise Invalid(f"a page named {name!r} already exists", details={"field": "name"})
        titles = dict(columns) if isinstance(columns, Mapping) else {each: _title(each) for each in columns}
        if not titles or not title.strip():
            raise Invalid(f"the page {name} needs a title and columns", details={"field": "columns"})
        page = AppPage(
            name=name,
            title=title,
            source=_relation(source, self._pages_schema),
            columns=titles,
            key=key,
            filters=tuple(filters),
            actions={action.name: action for action in actions},
            links=dict(links or {}),
            files=frozenset(files),
            order=order,
            description=description,
            is_for_operators=is_for_operators,
            packs=packs,
        )
        _check_page(page, len(actions))
        self.pages[name] = page


def _check_page(page: AppPage, actions: int) -> None:
    for column in (page.source, *page.read_columns):
        _check(_COLUMN, column, f"a name on the page {page.name}", "letters, digits and _")
    for column in page.filters:
        _check(_FILTER, column, f"a filter of the page {page.name}", "lower-case letters and _")
    if page.packs is not None:
        _check(_FILTER, page.packs, f"the meter of packs of the page {page.name}", "lower-case letters and _")
    if len(page.actions) < actions:
        raise Invalid(f"two actions of the page {page.name} have the same name", details={"field": "actions"})
    if unknown := sorted({*page.links, *page.files} - set(page.columns)):
        raise Invalid(
            f"links and files must be columns of the page {page.name} (got {', '.join(unknown)})",
            details={"field": "links"},
        )
    if (first := next(iter(page.columns))) in page.files:
        raise Invalid(
            f"the first column of the page {page.name} links to the row and cannot be a file (got {first})",
            details={"field": "columns"},
        )
    for column, target in page.links.items():
        if not re.fullmatch(r"/[\w/?=&.-]*\{\}[\w/?=&.-]*", target) or target.startswith("//"):
            raise Invalid(
                f"the link of {column} must be a path within the dashboard with one {{}} (got {target!r})",
                details={"field": "links"},
            )


def _relation(source: str, schema: str) -> str:
    """The name of the relation within the app's schema."""
    prefix, dot, name = source.rpartition(".")
    if dot and prefix != schema:
        raise Invalid(
            f"a page lists a view of the schema {schema} (got {source!r})", details={"field": "source"}
        )
    return name


def _title(column: str) -> str:
    return column.replace("_", " ").strip().capitalize()


def _check(pattern: re.Pattern[str], name: str, what: str, allowed: str) -> None:
    if not pattern.fullmatch(name):
        raise Invalid(f"{what} must consist of {allowed} (got {name!r})", details={"field": "name"})

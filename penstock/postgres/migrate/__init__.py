"""Brings a database to this version's schema, reports how it differs from it, and takes it back.

`sql/migrations/NNNN_verb_noun.sql` is append-only and runs once. Its first line names its phase: `-- phase:
expand` (old code still works afterwards) or `-- phase: contract` (for when the old code is gone; runs with
`migrate(contract=True)`). A fresh database has no old code, so there both run. A second line `-- no
transaction` marks a file whose statements must run outside one, such as a concurrent index build; each of
them must be safe to repeat. `NNNN_verb_noun.down.sql` is its rollback.

`sql/functions/*.sql`, `sql/views.sql`, `sql/grants.sql` and `sql/policies.sql` declare the current code.
`migrate` records what it applied and how PostgreSQL printed it (`records`), and applies only what differs:
statements that changed, and objects that somebody changed by hand. With no difference it only reads.

- Pending migrations, functions, views, grants and triggers change in one transaction, so that callers never
  find a new function beside an old one. (A call that is running at that moment finishes with the new inner
  functions: give a changed signature a new name, and drop the old one in a contract migration.)
- Policies change in one short transaction per table, in the order of the tables' names.
- No transaction waits long for a lock while it holds others: traffic is never the victim of a deadlock with
  `migrate`, which gives up, backs off and tries again.
- An advisory lock, held by a second connection, keeps other migrators out. It works through a transaction
  pooler.

`sql/schema.sql` is the declared contract: a picture of a fresh install, written by `make schema` and compared
with the live database by `check`.

An app brings SQL of its own in a folder like this one, for a schema of its own: `folder` and `schema`. It is
applied, recorded and taken back in the same way, and must pass the checks of `sql/breaches.sql` first.
"""

from penstock.postgres.migrate.apply import breaches, migrate
from penstock.postgres.migrate.contract import check, missing, parse, picture, render
from penstock.postgres.migrate.psql import script
from penstock.postgres.migrate.source import PENSTOCK, SQL, File, Own, Source, read
from penstock.postgres.migrate.undo import rollback

__all__ = [
    "PENSTOCK",
    "SQL",
    "File",
    "Own",
    "Source",
    "breaches",
    "check",
    "migrate",
    "missing",
    "parse",
    "picture",
    "read",
    "render",
    "rollback",
    "script",
]

"""Rewrite penstock/sql/schema.sql, the schema of a fresh install; --check only tells whether it is stale."""

from __future__ import annotations

import difflib
import sys

from penstock import testing
from penstock.postgres import db, migrate


def fresh_install() -> str:
    server = testing.server(18)
    name = server.create()
    try:
        migrate.migrate(server.dsn(name))
        with db.connect(server.dsn(name)) as connection:
            return migrate.render(migrate.picture(connection))
    finally:
        server.drop(name)
        testing.close_servers()


def main() -> int:
    path = migrate.SQL / "schema.sql"
    fresh = fresh_install()
    if "--check" not in sys.argv:
        path.write_text(fresh, encoding="utf-8")
        return 0
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if old == fresh:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(old.splitlines(True), fresh.splitlines(True), "schema.sql", "a fresh install")
    )
    print("penstock/sql/schema.sql is out of date: run `make schema`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

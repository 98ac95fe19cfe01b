"""Exactly once: an order and its job are one commit, and so are an invoice and the completion of its task.

python examples/orders.py
"""

from __future__ import annotations

import asyncio

import psycopg

from penstock import App, Context, Worker

app = App()


@app.task(transactional=True)
async def invoice(ctx: Context, order_id: int) -> int:
    """Writes through `ctx.connection` are committed with the completion of this task, or not at all."""
    cursor = await ctx.connection.execute(
        "insert into invoices (order_id) values (%s) returning number", [order_id]
    )
    return (await cursor.fetchone())["number"]


def place_order(what: str) -> int:
    """Start the job in the same transaction: without a committed order there is no job."""
    with psycopg.connect(app.dsn()) as connection:
        row = connection.execute("insert into orders (what) values (%s) returning id", [what]).fetchone()
        assert row is not None
        invoice.using(connection).start(row[0])
        return row[0]


def main() -> None:
    with app, psycopg.connect(app.dsn(), autocommit=True) as connection:
        connection.execute("create table if not exists orders (id serial primary key, what text not null)")
        connection.execute("create table if not exists invoices (number serial, order_id int unique)")
        for what in ("a boat", "two oars"):
            print("order", place_order(what))
        try:
            place_order(None)  # type: ignore[arg-type]
        except psycopg.errors.NotNullViolation:
            print("no order, no job")
        asyncio.run(Worker(app, drain=True).run())
        print("invoices", connection.execute("select count(*) from invoices").fetchone())


if __name__ == "__main__":
    main()

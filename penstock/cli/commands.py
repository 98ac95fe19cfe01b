"""The commands of the program. Each is imported when it runs, so that `penstock --help` is quick."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

_RUN, _OPERATE, _MONEY = "Run", "Operate", "Providers, usage and costs"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is, and its line in the overview."""

    panel: str
    module: str
    help: str
    group: str | None = None
    """The name of the group in the module; without one, `add_to` of the module adds the command."""


COMMANDS = {
    "demo": Entry(
        _RUN, "run", "Run a sample app on an embedded database: it makes a small book as text, PDF and MP3."
    ),
    "worker": Entry(_RUN, "run", "Run the tasks of an app until stopped."),
    "migrate": Entry(_RUN, "run", "Migrate the database to this version's schema."),
    "doctor": Entry(_RUN, "run", "Check the database, its settings, the schema, workers and backlog."),
    "dev": Entry(_RUN, "dev", "Run a database, the API with a development login, and a worker for your app."),
    "init": Entry(
        _RUN, "init", "Make a project with an app, tests, a Dockerfile and CI, or copy an example app."
    ),
    "mcp": Entry(_RUN, "mcp", "Serve tools for language models (MCP), on the API at PENSTOCK_URL."),
    "serve": Entry(_RUN, "serve", "Serve the HTTP API and the dashboard until stopped."),
    "simulate": Entry(
        _RUN,
        "simulate",
        "Simulate OpenAI, Anthropic, Google Sheets, CloudConvert, Stripe and a prompt shield until stopped.",
    ),
    "backlog": Entry(
        _OPERATE,
        "operate",
        "Show waiting and running tasks, wanted slots and live workers by kind and provider.",
    ),
    "jobs": Entry(_OPERATE, "start", "List, watch, pause, resume, cancel and retry jobs.", "group"),
    "bulk": Entry(_OPERATE, "bulk", "Run one job over the rows of a spreadsheet or file.", "group"),
    "waits": Entry(_OPERATE, "waits", "Show and answer what tasks ask people.", "group"),
    "operations": Entry(_OPERATE, "operations", "Show, reconcile and cancel work at providers.", "group"),
    "webhooks": Entry(_OPERATE, "webhooks", "Show and replay webhooks.", "group"),
    "dead-letters": Entry(
        _OPERATE, "dead_letters", "Show, replay or discard tasks that failed permanently.", "group"
    ),
    "prompts": Entry(_OPERATE, "prompts", "Manage prompts: versions, activation, rollback, trials.", "group"),
    "schedules": Entry(_OPERATE, "schedules", "Manage recurring jobs.", "group"),
    "notifications": Entry(_OPERATE, "notifications", "Manage notifications by e-mail and webhook.", "group"),
    "artifacts": Entry(_OPERATE, "artifacts", "List and check files that jobs stored.", "group"),
    "workers": Entry(_OPERATE, "operate", "List workers, the processes that run tasks.", "workers_group"),
    "tenants": Entry(_OPERATE, "operate", "List and create tenants.", "tenants_group"),
    "cells": Entry(_OPERATE, "cells", "Manage several databases, and move tenants between them.", "group"),
    "keys": Entry(_OPERATE, "keys", "Manage API keys.", "group"),
    "members": Entry(_OPERATE, "invitations", "Manage members of tenants, and erase users.", "members_group"),
    "invitations": Entry(_OPERATE, "invitations", "Manage invitations to tenants.", "group"),
    "sessions": Entry(_OPERATE, "sessions", "Manage dashboard sessions.", "group"),
    "admin": Entry(_OPERATE, "admin", "Manage people and admins of the installation.", "group"),
    "sheets": Entry(_OPERATE, "sheets", "Show and release the tenants of Google Sheets.", "group"),
    "limits": Entry(_MONEY, "limits", "Manage providers, their rate limits and their state.", "group"),
    "providers": Entry(
        _MONEY,
        "providers",
        "Manage keys of providers, and the catalogue of their prices and limits.",
        "group",
    ),
    "usage": Entry(_MONEY, "usage", "Show usage and manage quotas.", "group"),
    "plans": Entry(_MONEY, "usage", "Manage subscription plans.", "plans_group"),
    "gates": Entry(_MONEY, "gates", "Manage gates: what a plan must include.", "group"),
    "billing": Entry(
        _MONEY, "billing", "Show and compare subscriptions at Stripe, and map its prices.", "group"
    ),
    "costs": Entry(_MONEY, "costs", "Show and correct costs.", "group"),
    "spend": Entry(
        _MONEY, "admin", "Show costs, revenue and margin of a month, and manage fixed costs.", "spend_group"
    ),
    "prices": Entry(_MONEY, "costs", "Manage provider prices and exchange rates.", "prices_group"),
}


@cache
def load(name: str) -> Any:
    """Import a command of the program."""
    entry = COMMANDS[name]
    module = importlib.import_module(f"penstock.cli.{entry.module}")
    holder = typer.Typer()
    if entry.group is None:
        module.add_to(holder)
    else:
        holder.add_typer(getattr(module, entry.group), name=name, rich_help_panel=entry.panel)
    return typer.main.get_group(holder).commands[name]


class Commands(TyperGroup):
    """The program: knows the lines of the overview, and imports a command only to run it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {
            name: TyperCommand(name, help=entry.help, rich_help_panel=entry.panel)
            for name, entry in COMMANDS.items()
        }

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the overview as plain text: importing rich's panels would take half of the time."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
            lines = [(name, entry.help) for name, entry in COMMANDS.items() if entry.panel == panel]
            with formatter.section(panel):
                formatter.write_dl(lines)
        options = (parameter.get_help_record(ctx) for parameter in self.get_params(ctx))
        with formatter.section("Options"):
            formatter.write_dl([line for line in options if line is not None])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that runs."""
        if args and args[0] in COMMANDS:
            return args[0], load(args[0]), args[1:]
        return super().resolve_command(ctx, args)

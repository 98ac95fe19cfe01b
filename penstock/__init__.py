"""Penstock: a multi-tenant job platform on plain PostgreSQL."""

__version__ = "0.1.0"

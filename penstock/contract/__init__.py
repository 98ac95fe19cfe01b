"""Typed callers of the SQL contract, one module per noun. They hold no rules: a rule is an SQL function."""

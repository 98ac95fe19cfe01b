"""Several databases (cells): their addresses, the directory of tenants, and what is done to all of them."""

from penstock.cells.addresses import Cell, read
from penstock.cells.moving import move
from penstock.cells.sharing import apply, rebalance

__all__ = ["Cell", "apply", "move", "read", "rebalance"]

"""Example apps that use only Penstock's public API. `penstock init --app NAME` copies one as a start."""

"""Applications built on Penstock's public names only. `penstock init --app NAME` copies one to start from."""

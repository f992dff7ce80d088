"""The ledger: an append-only record of all releases, each written before it happens."""

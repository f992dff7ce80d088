"""The ledger: every release is written to it before it happens."""

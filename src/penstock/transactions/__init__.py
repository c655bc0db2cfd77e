"""Transactions, as a pure state machine."""

"""The embedded metadata store, kept in one SQLite file."""

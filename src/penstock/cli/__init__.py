"""What people type: argument parsing, tables, and errors in one line."""

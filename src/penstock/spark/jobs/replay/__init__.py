"""The job `replay` copies a range of a topic's records to a topic or a table."""

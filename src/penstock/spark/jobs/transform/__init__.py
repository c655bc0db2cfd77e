"""The job `transform` sends a topic through SQL or a Python function to another topic."""

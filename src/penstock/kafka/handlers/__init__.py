"""One module per API: it translates between the wire and the broker, and nothing else."""

"""The small client that the command line, brokers and pipelines use: raw batches, no magic."""

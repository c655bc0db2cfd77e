"""The job `lake` copies topics into a table of Parquet files, each record exactly once."""

"""The job `dlq` lists, repairs and resends dead letters."""

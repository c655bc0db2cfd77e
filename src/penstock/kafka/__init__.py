"""The Kafka front end: listeners, connections, one handler module per API."""

"""The Kafka protocol: bytes to messages and back."""

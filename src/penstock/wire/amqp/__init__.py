"""The AMQP 0-9-1 codec, with RabbitMQ's extensions: bytes to values and back, without I/O."""

"""Delivery state of single messages: windows of share groups and work queues."""

"""Producer and Consumer for applications."""

"""The controller's rules: pure functions from an image and a command to decisions."""

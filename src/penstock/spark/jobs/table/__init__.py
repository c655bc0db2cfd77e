"""The tables that `lake` and `replay` write and `audit` reads: layout, manifests and decoding."""

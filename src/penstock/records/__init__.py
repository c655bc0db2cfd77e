"""Record batches: bytes to values and back."""

"""The vocabulary: ids, errors, settings, clocks."""

"""Mirrors to clusters that cannot keep the source's offsets: records are produced again."""

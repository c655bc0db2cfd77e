"""The job `mirror` copies topics to another cluster and keeps their offsets."""

"""Background work on logs: retention, compaction, scrubbing, repair, full disks."""

"""The job `traffic` measures rates, sizes and growth of topics."""

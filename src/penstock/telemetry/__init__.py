"""Counters, gauges and histograms. No exporter, no clock."""

"""Counters, gauges and histograms, cheap enough for every request. No clock, no lock, no exporter."""

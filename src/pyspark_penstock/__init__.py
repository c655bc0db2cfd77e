"""Makes `format("penstock")` known to Spark, which looks for data sources in modules of this name."""

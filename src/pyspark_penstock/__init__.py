"""Makes `format("penstock")` known to Spark, which looks for data sources in modules of this name.

What reads and writes is imported when it is first used: Spark imports this module for every data source that it looks up.
"""

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """`penstock` as a batch and streaming source, with the schema and options of Spark's own `kafka` source."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> Any:
        from penstock.spark.options import parse_shape
        from penstock.spark.rows import schema_of

        return schema_of(parse_shape(self.options))

    def reader(self, schema: Any) -> Any:
        from penstock.spark.source import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:
        from penstock.spark.source import StreamReader

        return StreamReader(self.options, schema)

"""Makes `format("penstock")` known to Spark, which looks for data sources in modules of this name.

What reads and writes is imported when it is first used: Spark imports this module for every data source that it looks up.
"""

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """`penstock` as a batch and streaming source and sink, with the schema and options of Spark's own `kafka`."""

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

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from penstock.spark.sink import make_writer

        return make_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from penstock.spark.sink import make_stream_writer

        return make_stream_writer(schema, self.options, overwrite)

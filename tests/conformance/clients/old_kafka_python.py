"""Writes and reads through a group with an old kafka-python, and prints what it saw as JSON."""

import json
import sys

import kafka

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip")
for number in range(count):
    producer.send(topic, b"value-%d" % number, key=b"key", headers=[("number", b"%d" % number)])
producer.flush()
consumer = kafka.KafkaConsumer(
    topic,
    bootstrap_servers=bootstrap,
    group_id=f"{topic}-group",
    auto_offset_reset="earliest",
    consumer_timeout_ms=60_000,
)
values = []
for record in consumer:
    values.append(f"{record.value.decode()}/{dict(record.headers)['number'].decode()}")
    if len(values) == count:
        break
consumer.close()
sys.stdout.write(json.dumps({"version": kafka.__version__, "values": values}))

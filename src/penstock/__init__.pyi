from penstock.sdk import AsyncConsumer as AsyncConsumer
from penstock.sdk import AsyncProducer as AsyncProducer
from penstock.sdk import Consumer as Consumer
from penstock.sdk import Producer as Producer

__version__: str

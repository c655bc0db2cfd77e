from penstock.sdk import Consumer as Consumer
from penstock.sdk import Producer as Producer

__version__: str

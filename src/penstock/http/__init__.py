"""The operator's front end: metrics and health over HTTP/1.1."""

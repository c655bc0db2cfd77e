"""One module per API: the layout of its request and response in every version."""

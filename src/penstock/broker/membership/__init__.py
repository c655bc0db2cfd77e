"""This broker's session, its view of the other brokers, and the detection of failed ones."""

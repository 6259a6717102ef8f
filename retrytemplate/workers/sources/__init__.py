"""Sources: the queues that a runtime receives messages from."""

"""The runtime: it receives messages, runs the handler in attempts, and settles them."""

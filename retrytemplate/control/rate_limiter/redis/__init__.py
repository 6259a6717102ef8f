"""A rate limit that several processes share, in Redis or Valkey."""

"""The context cache in Redis or Valkey."""

"""The context cache in SQLite or PostgreSQL."""

"""The engine: the rules of an execution, and the drivers that perform its effects."""

"""The kill switch: an operator stops work, and resumes it step by step."""

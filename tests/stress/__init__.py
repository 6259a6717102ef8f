"""Campaigns that repeat one thing for minutes; the suite has a short run of each."""

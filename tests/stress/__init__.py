"""Campaigns that repeat one scenario for minutes; the suite has a short run of each."""

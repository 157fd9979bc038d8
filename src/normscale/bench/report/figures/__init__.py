"""The figures of a report: functions from numbers to a matplotlib Figure, one kind per file."""

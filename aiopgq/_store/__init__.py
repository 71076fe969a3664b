"""The only place that speaks SQL: statements in files, one short coroutine for each, rows become values."""

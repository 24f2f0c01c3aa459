"""report: make a page with tables and figures from reports of `eval`."""

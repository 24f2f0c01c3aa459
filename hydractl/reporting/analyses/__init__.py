"""What `eval --analyse` found, in tables and figures."""

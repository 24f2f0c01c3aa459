"""score: scores the importance of each attention head."""

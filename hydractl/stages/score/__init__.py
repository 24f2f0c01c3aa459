"""score: compute the importance of each attention head."""

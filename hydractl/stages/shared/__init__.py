"""What several stages need."""

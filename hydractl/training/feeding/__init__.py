"""What training reads."""

"""What training does, as data."""

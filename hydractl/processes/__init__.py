"""The processes of a run, and the signals that end them."""

"""Methods for the importance of attention heads. `methods.py` lists all methods."""

"""export: writes a model to a file that runs without hydractl."""

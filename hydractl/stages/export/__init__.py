"""export: write a model to a file that runs without hydractl."""

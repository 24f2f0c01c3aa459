"""Models of OpenCLIP."""

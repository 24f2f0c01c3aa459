"""Weights of training scripts: reading files, recognizing the architecture, and matching tensor names."""

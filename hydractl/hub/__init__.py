"""Folders and repositories that transformers, timm and the Hub can read, and the model card."""

"""Encoders of Hugging Face transformers."""

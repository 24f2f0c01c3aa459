"""Encoders and decoders of Hugging Face transformers."""

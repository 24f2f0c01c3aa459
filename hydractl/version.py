"""The version: apart from the package's own module, which knows of all that is public."""

__version__ = "0.1.0"

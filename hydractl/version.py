"""The version, in a module without imports, for all other modules."""

__version__ = "0.2.0"
INSTALL = "pip install git+https://github.com/hydractl/hydractl"
"""Command that installs the package from its repository, because the package is not yet on an index."""
UPGRADE = f"a newer release may have made it: `{INSTALL} --upgrade`"
"""Hint for a file with a name or version unknown to this release."""

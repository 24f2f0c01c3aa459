"""The version: apart from the package's own module, which knows of all that is public."""

__version__ = "0.1.0"
INSTALL = "pip install git+https://github.com/hydractl/hydractl"
"""The command that installs the package from where it is: its repository, until it is on an index."""
UPGRADE = f"a newer release may have made it: `{INSTALL} --upgrade`"
"""Hint for a file with a name or version that this release does not know."""

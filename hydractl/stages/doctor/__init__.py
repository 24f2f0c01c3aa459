"""doctor: checks the installation."""

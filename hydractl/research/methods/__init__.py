"""Training methods of other papers, one module per method or group of methods."""

"""Other ways to train than to change every weight: what ensembles that a hydra is compared with are made by."""

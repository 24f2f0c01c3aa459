"""push: upload a model, its files and its card to the Hub."""

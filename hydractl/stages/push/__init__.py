"""push: a model, its files and its card into a repository of the Hub."""

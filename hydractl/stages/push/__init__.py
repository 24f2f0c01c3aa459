"""push: uploads a model, its files and its card to the Hub."""

"""The layout that libraries share: folders, the Hub, Auto classes."""

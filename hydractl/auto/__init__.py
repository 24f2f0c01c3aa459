"""What lets transformers and timm load members and hydras themselves."""

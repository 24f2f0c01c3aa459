"""Members and hydras as models of transformers and timm."""

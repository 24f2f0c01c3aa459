"""The stages of the pipeline; they meet through files and never import each other."""

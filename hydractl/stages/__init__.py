"""The stages of the pipeline. They exchange data through files and never import each other."""

"""lineage: what did a model come from, and is it still that?"""

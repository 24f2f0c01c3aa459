"""predict: what does a model say of every input, and how sure is it?"""

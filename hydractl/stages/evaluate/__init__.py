"""eval: how good, how well calibrated and how expensive are models?"""

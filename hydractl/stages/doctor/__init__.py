"""doctor: is everything there that hydractl needs?"""

"""inspect: what is this file?"""

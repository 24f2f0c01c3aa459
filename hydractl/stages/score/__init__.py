"""score: how much does each head matter?"""

"""What several tests build: tiny models with weights of which none is zero or one, and files of them."""

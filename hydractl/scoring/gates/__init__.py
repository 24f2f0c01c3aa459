"""Gates that training learns."""

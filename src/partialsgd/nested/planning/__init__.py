"""Planning: which layers and hidden units a spec applies to, and what replaces them."""

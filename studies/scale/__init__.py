"""How long a step takes on more workers than we have: a model of links and steps, checked against measured ones."""

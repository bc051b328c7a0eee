"""How a token is chosen: parameters, noise, grammars."""

"""The exact filter: frozen features, and the posterior of a linear head in closed form."""

"""`natgrad bench optim`: NGD and its peers on networks."""

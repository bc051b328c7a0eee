"""Small draft models, trained on the distributions of the model they draft for."""

"""The bundled demo models and their model card."""

"""From training to serving and back, beside a script that loads the whole model."""

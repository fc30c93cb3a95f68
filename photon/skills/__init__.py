"""What can be asked of the model: query, caption, point, detect."""

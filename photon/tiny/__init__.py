"""How the embedded model in `assets/tiny` is made: scenes, training, evaluation."""

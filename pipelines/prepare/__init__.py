"""What is done to a whole scan before it is cut into samples: `settings` says what, `steps` does it."""

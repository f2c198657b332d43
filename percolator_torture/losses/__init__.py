"""What is lost when a server is taken away."""

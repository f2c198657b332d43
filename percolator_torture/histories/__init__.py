"""What transactions did and saw, on file and in memory, and the state that they left."""

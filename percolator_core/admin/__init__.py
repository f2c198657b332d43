"""What a person or a scheduler asks of a namespace: its status, its rows' history, failed cells, reruns."""

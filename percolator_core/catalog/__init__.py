"""Which tables a namespace has, and how their definitions change while others use them."""

"""Every key of the store, and every value that is packed into bytes; the Lua side is scripts/parts."""

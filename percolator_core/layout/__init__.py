"""Every key of the store, and every packed value; the Lua side is scripts/parts/_layout.lua."""

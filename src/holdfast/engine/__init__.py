"""The engine: one Lua file per transition, and the pure calls that address them."""

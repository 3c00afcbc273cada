"""The engine: one Lua file per transition, and the pure functions that make calls of them."""

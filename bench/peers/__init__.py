"""The peers, each in an environment of its own, so that none can disturb another."""

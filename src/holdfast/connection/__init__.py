"""Bytes to and from servers: URLs, logins, connections, clusters, and retries."""

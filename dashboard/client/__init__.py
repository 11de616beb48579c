"""HTTP and SSE client of the admin API; knows no terminal."""

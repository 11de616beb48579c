"""The operator's terminal screen; speaks only the public admin REST and SSE."""

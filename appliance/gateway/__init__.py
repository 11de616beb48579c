"""The data plane: the OpenAI endpoint."""

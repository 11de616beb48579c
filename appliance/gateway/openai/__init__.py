"""The OpenAI contract: routes, parameters, answers and errors."""

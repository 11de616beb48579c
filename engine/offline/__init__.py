"""What `LLM` and `AsyncLLM` share: parameters, prompts, results, and the engines behind them."""

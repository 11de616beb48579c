"""The engine core: scheduling, KV memory, the model runner and the process around them."""

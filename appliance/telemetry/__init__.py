"""Records in; spans, metrics, live tables and the trace store out."""

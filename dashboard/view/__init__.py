"""What each panel shows, as plain lines: pure functions of the state, without Textual."""

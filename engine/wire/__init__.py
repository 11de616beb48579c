"""The wire between clients and engine cores: messages, header, codec, sockets, addresses."""

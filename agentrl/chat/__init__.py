"""Messages to tokens and back, incrementally. Start at `agentrl.chat.format`."""

"""What a step gives: rows sampled, drafts verified, tokens emitted, states moved."""

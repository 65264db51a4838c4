"""How weights are updated, in no framework's terms: rules, their settings, who is exempt from decay, averaging."""

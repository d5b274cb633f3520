"""See runs in the browser (`view`)."""

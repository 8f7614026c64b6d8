"""Fleet files: one YAML of three sections, checked and frozen. Imports neither ray nor torch."""

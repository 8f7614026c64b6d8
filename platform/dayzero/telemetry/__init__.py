"""OpenTelemetry spans and Prometheus metrics, by name and unit."""

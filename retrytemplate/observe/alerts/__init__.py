"""Service level objectives, burn rates and alerts: in this process, for Prometheus, for Grafana."""

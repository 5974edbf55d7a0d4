"""Views of a running command for others: metrics, a status page, alerts.

In reading order: `samples`, `metrics`, `alerts`, `webhook`, `chart`, `page`, `access`, `server`, `watch`,
`probe`.
"""

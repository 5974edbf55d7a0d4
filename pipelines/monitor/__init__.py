"""What a running command shows of itself to others: metrics, a status page, alerts.

In reading order: `samples`, `sampler`, `readiness`, `metrics`, `alerts`, `webhook`, `chart`, `page`,
`access`, `server`, `watch`, `probe`.
"""

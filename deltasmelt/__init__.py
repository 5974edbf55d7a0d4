"""deltasmelt from Python."""

from _deltasmelt.ours import require_ours

require_ours()
